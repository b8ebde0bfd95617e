"""Bytes of optimizer states against those that the optimizers themselves hold for a small Llama, one step taken."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from builders import job_of, row_of
from cost_models.memory.batch import build_batch
from cost_models.memory.states import stage_states
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


def peak_bytes(step: Callable[[], Any]) -> int:
    """The most that one step holds beside what it found."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["muon", "adafactor"])
def test_a_step_holds_the_temporaries_of_its_largest_matrix(optimizer: str, dtype: str):
    rows, columns = 384, 1024
    matrix = torch.nn.Parameter(
        torch.randn(rows, columns, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
    )
    matrix.grad = torch.randn_like(matrix)
    made = torch.optim.Muon([matrix]) if optimizer == "muon" else adafactor({"matrix": matrix})[0]
    made.step()
    # Its down projection is the largest matrix of this model.
    config = {**CONFIG, "hidden_size": rows, "intermediate_size": columns, "vocab_size": 96}
    asked = job_of(
        {"hf_config": config}, "fsdp", optimizer=optimizer, param_dtype=dtype, grad_dtype=dtype, main_param_dtype="none"
    )
    batch = build_batch(asked, row_of(asked, zero=0, dp=8))
    expected = float(stage_states(batch).bytes_KN.step[0, 0])
    assert peak_bytes(made.step) == pytest.approx(expected, rel=0.04)  # some kilobytes of the processor's kernels
