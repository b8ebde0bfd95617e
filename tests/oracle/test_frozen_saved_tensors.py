"""What transformers' layers save for their backward, counted by torch's own hooks, with parts of the model frozen or beside adapters.

Models with more and with fewer layers are compared, so that embedding, head and loss cancel; bytes of one storage count once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import saved_tensors

from planner.rows import evaluate_rows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "head_dim": 16, "max_position_embeddings": 256,
}  # fmt: skip
TOKENS, RANK = 256, 4
PATHS = {
    "embedding": ("embed_tokens",), "attention": ("self_attn",), "mlp": ("mlp",), "norms": ("layernorm", "model.norm"),
}  # fmt: skip
FROZEN: tuple[tuple[str, ...], ...] = (
    (), ("embedding",), ("norms",), ("attention",), ("mlp",), ("attention", "mlp"), ("attention", "norms"), ("mlp", "norms"),
    ("embedding", "attention", "mlp", "norms"),
)  # fmt: skip
ADAPTED: tuple[tuple[str, ...], ...] = (
    ("q_proj",), ("q_proj", "v_proj"), ("o_proj",), ("down_proj",), ("gate_proj", "up_proj"),
    ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)  # fmt: skip


class Adapted(torch.nn.Module):  # type: ignore[name-defined,misc]
    """A frozen linear layer with a low-rank product beside it, as peft/tuners/lora/layer.py computes it."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base
        self.lora_a = torch.nn.Linear(base.in_features, RANK, bias=False, dtype=torch.bfloat16)
        self.lora_b = torch.nn.Linear(RANK, base.out_features, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.lora_b(self.lora_a(x)) * 2.0


def freeze(model: Any, frozen: tuple[str, ...]) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(path in name for part in frozen for path in PATHS[part]))


def adapt(model: Any, targets: tuple[str, ...]) -> None:
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets:
                setattr(module, name, Adapted(child))


def saved_bytes(num_layers: int, change: Callable[[Any], None]) -> int:
    """Bytes that a forward keeps for the backward, weights left out."""
    config = transformers.LlamaConfig(num_hidden_layers=num_layers, attn_implementation="sdpa", **SIZES)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    change(model)

    def forward() -> None:
        assert model(torch.zeros(1, TOKENS, dtype=torch.long)).logits.requires_grad

    return saved_tensors.saved_bytes(model, forward)[0]


def priced_bytes(num_layers: int, **training: Any) -> float:
    """The activations of the same layers here."""
    model = {"model_type": "llama", "num_hidden_layers": num_layers, "tie_word_embeddings": False, **SIZES}
    row = {
        "id": 0,
        "model": {"hf_config": model},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 1},
        "training": {
            "seq_length": TOKENS, "global_batch_size": 1, "precision": "bf16", "framework": "fsdp", "param_dtype": "bf16",
            "optimizer": "sgd", **training,
        },
        "strategy": {"micro_batch_size": 1, "zero": 0, "recompute": "none"},
    }  # fmt: skip
    (answer,) = evaluate_rows([row])
    (stage,) = answer["memory"]["stages"]
    assert stage["peak_moment"] == "loss"
    return float(stage["breakdown_bytes"]["activations"])


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda frozen: "-".join(frozen) or "nothing")
def test_a_layer_with_frozen_parts_saves_what_torch_keeps(frozen: tuple[str, ...]) -> None:
    kept = [saved_bytes(layers, lambda model: freeze(model, frozen)) for layers in (3, 5)]
    priced = [priced_bytes(layers, frozen=list(frozen)) for layers in (3, 5)]
    assert priced[1] - priced[0] == kept[1] - kept[0]


@pytest.mark.parametrize("targets", ADAPTED, ids="-".join)
def test_a_layer_with_adapters_saves_what_torch_keeps(targets: tuple[str, ...]) -> None:
    adapter = {"rank": RANK, "target_modules": list(targets)}
    kept = [saved_bytes(layers, lambda model: adapt(model, targets)) for layers in (3, 5)]
    priced = [priced_bytes(layers, adapter=adapter) for layers in (3, 5)]
    assert priced[1] - priced[0] == kept[1] - kept[0]
