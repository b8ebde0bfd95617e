"""What transformers' gated delta nets save for their backward, counted by torch's own hooks around every layer.

The two kernels that a CPU lacks are stood in for by functions that save what they save (causal_conv1d_interface.py, CausalConv1dFn;
fla/ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction): everything around them is transformers' own.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import saved_tensors

from planner.rows import evaluate_rows

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 256
_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "model_type": "qwen3_5_text", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 160, "vocab_size": 512, "linear_num_value_heads": 2, **_DELTA,
    },
    "repeated keys": {
        "model_type": "qwen3_5_text", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 160, "vocab_size": 512, "linear_num_value_heads": 4, **_DELTA,
    },
}  # fmt: skip


class Convolution(torch.autograd.Function):
    """Saves its input."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)


class Rule(torch.autograd.Function):
    """Saves normalised queries and keys with their lengths, values, decays, strengths, and each chunk's triangle."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, decay: Any, strength: Any) -> Any:
        repeated = v.shape[2] // q.shape[2]
        q, k = (each.repeat_interleave(repeated, dim=2) for each in (q, k))
        lengths = torch.empty(*q.shape[:3])
        triangle = torch.empty(*v.shape[:3], 64, dtype=q.dtype)
        ctx.save_for_backward(
            q.clone(), lengths, k.clone(), lengths.clone(), v.contiguous().clone(), decay.clone(), strength, triangle
        )
        return torch.empty_like(v, memory_format=torch.contiguous_format)


def saved_by_layer(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Bytes that each layer of eight keeps for its backward."""
    module = import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    monkeypatch.setattr(module, "causal_conv1d_fn", lambda x, weight, *_, **__: Convolution.apply(x, weight))
    monkeypatch.setattr(
        module, "torch_chunk_gated_delta_rule", lambda q, k, v, g, beta, **_: (Rule.apply(q, k, v, g, beta), None)
    )
    config = transformers.AutoConfig.for_model(**fields, num_hidden_layers=8, tie_word_embeddings=True, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    current = [-1]
    for number, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(lambda *_, number=number: current.__setitem__(0, number))
        layer.register_forward_hook(lambda *_: current.__setitem__(0, -1))
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    return saved_tensors.saved_bytes(model, lambda: model(input_ids=tokens), place=lambda: current[0])


def priced_bytes(fields: dict[str, Any], layers: int) -> float:
    """The activations of a model with as many layers here, of which every fourth attends."""
    row = {
        "id": 0, "model": {"hf_config": fields | {"num_hidden_layers": layers, "tie_word_embeddings": True}},
        "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 1},
        "training": {
            "seq_length": TOKENS, "global_batch_size": 1, "precision": "bf16", "framework": "fsdp", "param_dtype": "bf16",
            "main_param_dtype": "none", "optimizer": "sgd", "attention_kernel": "sdpa",
        },
        "strategy": {"micro_batch_size": 1, "zero": 0, "recompute": "none"},
    }  # fmt: skip
    (answer,) = evaluate_rows([row])
    assert answer["verdict"] == "fits", answer["reasons"]
    return float(answer["memory"]["stages"][0]["breakdown_bytes"]["activations"])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_delta_nets_layer_saves_what_torch_keeps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = saved_by_layer(CONFIGS[name], monkeypatch)
    recurrent = priced_bytes(CONFIGS[name], 6) - priced_bytes(CONFIGS[name], 5)
    # Statistics of norms and decays are a few fp32 numbers a head, of which autograd keeps some twice.
    assert recurrent == pytest.approx(found[1], rel=0.01)


def test_attention_between_delta_nets_keeps_its_norms_in_fp32_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = CONFIGS["qwen3_5_text"]
    attends = priced_bytes(fields, 8) - priced_bytes(fields, 7)
    # A CPU's attention returns its output in another layout than a GPU's, so that the gate's product has a copy of it.
    copied = 4 * 32 * 2 * TOKENS
    # The first layer that attends also keeps the rotary tables, which all share: the second one does not.
    assert attends == pytest.approx(saved_by_layer(fields, monkeypatch)[7] - copied, rel=0.01)
