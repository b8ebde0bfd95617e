"""Bytes of optimizer states against those that the optimizers themselves hold for a small Llama, one step taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner.rows import evaluate_rows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "vocab_size": 96, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def parameters() -> dict[str, Any]:
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**CONFIG))
    named = dict(model.named_parameters())
    for parameter in named.values():
        parameter.grad = torch.randn_like(parameter)
    return named


def muon(named: dict[str, Any]) -> list[Any]:
    matrices = [p for name, p in named.items() if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    held = {id(p) for p in matrices}
    return [torch.optim.Muon(matrices), torch.optim.AdamW([p for p in named.values() if id(p) not in held])]


def adafactor(named: dict[str, Any]) -> list[Any]:
    made = transformers.optimization.Adafactor(named.values(), lr=1e-3, scale_parameter=False, relative_step=False)
    return [made]


OPTIMIZERS: dict[str, Callable[[dict[str, Any]], list[Any]]] = {
    "adam": lambda named: [torch.optim.AdamW(named.values())],
    "sgd": lambda named: [torch.optim.SGD(named.values(), lr=1e-3)],
    "sgd-momentum": lambda named: [torch.optim.SGD(named.values(), lr=1e-3, momentum=0.9)],
    "muon": muon,
    "adafactor": adafactor,
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_states_are_those_of_the_optimizer(parameters: dict[str, Any], optimizer: str):
    made = OPTIMIZERS[optimizer](parameters)
    for each in made:
        each.step()
    states = [value for each in made for state in each.state.values() for value in state.values()]
    # Counters of steps are single numbers, and no moments.
    held = sum(value.nbytes for value in states if torch.is_tensor(value) and value.ndim)
    row = {
        "model": {"hf_config": CONFIG}, "cluster": {"preset": "dgx-h100", "num_nodes": 1},
        "training": {
            "seq_length": 256, "global_batch_size": 8, "precision": "bf16", "framework": "fsdp", "optimizer": optimizer,
            "param_dtype": "fp32",
        },
        "strategy": {"zero": 0, "micro_batch_size": 1},
    }  # fmt: skip
    (answer,) = evaluate_rows([row])
    assert answer["verdict"] != "invalid", answer["reasons"]
    assert answer["memory"]["stages"][0]["breakdown_bytes"]["optimizer_states"] == held
