"""Which of torchtitan's models a plan's model is, and the arguments that make it so.

torchtitan names models by flavour, and has no option for a shape. The launch therefore registers a flavour of its own, in a Python
module beside the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.export.quantities import Quantities
from planner.export.targets.torchtitan import keys

_PLAIN: Mapping[str, Any] = {
    "gated_mlp": True, "norm": "rmsnorm", "norm_bias": False, "norm_weight": True, "norms_per_layer": 2, "position_embedding": "rope",
    "mlp_bias": False, "head_bias": False, "parallel_block": False, "embedding_norm": False, "final_norm": True,
    "attention_sinks": False, "attention_gate": False, "activation_parameters": 0, "attention_bias": False,
    "sliding_window": None, "layer_types": None, "mtp_num_layers": 0,
}  # fmt: skip
"""What llama3, qwen3 and deepseek_v3 are (models/llama3, models/qwen3, models/deepseek_v3)."""
_MOE_PLAIN: Mapping[str, Any] = {"shared_expert_gate": False, "router_bias": False, "capacity_factor": None}


@dataclass(frozen=True)
class Shape:
    """A model of torchtitan and its sizes."""

    family: str
    """llama3, qwen3 or deepseek_v3."""
    arguments: Mapping[str, Any]
    """By the names of the plan's fields."""

    @property
    def is_moe(self) -> bool:
        """Whether layers have experts."""
        return "num_experts" in self.arguments


def shape_of(q: Quantities) -> Shape:
    """The plan's model as one of torchtitan's.

    Raises:
        FieldNotExpressibleError: none of them has such a field.
    """
    for field, only in _PLAIN.items():
        q.only(f"model.{field}", [only], why="its models llama3, qwen3 and deepseek_v3 have no such layers")
    arguments = {
        name: q[f"model.{name}"]
        for name in (
            "num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
            "tie_word_embeddings", "max_position_embeddings",
        )
    }  # fmt: skip
    # The rotary tables are made for this length; a longer sequence would only be warned about.
    arguments["max_position_embeddings"] = max(arguments["max_position_embeddings"] or 0, q.peek("training.seq_length"))
    moe, mla = q["model.moe"], q["model.mla"]
    if moe is not None:
        _check_moe(q, moe)
        arguments |= {
            name: moe[name] for name in ("num_experts", "top_k", "expert_intermediate_size", "num_shared_experts")
        }
    if mla is not None:
        return _latent(q, arguments, moe, mla)
    norm = q.only("model.qk_norm", ["none", "per_head"], why="qwen3 normalises each head")
    arguments["qk_norm"] = norm == "per_head"
    # llama3 ties its embeddings from 0.3 on; before, qwen3 with its norms of heads switched off is the same model.
    tied = arguments["tie_word_embeddings"] and not keys.is_python(q.version)
    square = arguments["num_attention_heads"] * arguments["head_dim"] == arguments["hidden_size"]
    if moe is None and norm == "none" and square and not tied:
        return Shape("llama3", arguments)
    if moe is not None and (moe["num_shared_experts"] or moe["num_groups"] > 1 or not all(moe["moe_layer_freq"])):
        raise q.refusal("model.moe", why="qwen3 has routed experts alone, in every layer and in one group")
    if not keys.is_python(q.version):
        q.only("pp", [1], why="qwen3 has no pipelining_fn in 0.2 (models/qwen3)")
    return Shape("qwen3", arguments)


def _check_moe(q: Quantities, moe: Mapping[str, Any]) -> None:
    for name, only in _MOE_PLAIN.items():
        if moe[name] != only:
            raise q.refusal("model.moe", why=f"{name} is {only} in its models", nearest={f"model.moe.{name}": only})
    if moe["num_shared_experts"] and moe["shared_expert_intermediate_size"] != moe["expert_intermediate_size"]:
        raise q.refusal("model.moe", why="its shared experts are as wide as the others (models/moe)",
                        nearest={"model.moe.shared_expert_intermediate_size": moe["expert_intermediate_size"]})  # fmt: skip


def _latent(q: Quantities, arguments: dict[str, Any], moe: Mapping[str, Any] | None, mla: Mapping[str, Any]) -> Shape:
    why = "deepseek_v3 is its only model with latent attention"
    if moe is None:
        raise q.refusal("model.mla", why=f"{why}, and it has experts")
    q.only("model.tie_word_embeddings", [False], why=why)
    q.only("model.qk_norm", ["none"], why=why)
    pattern = list(moe["moe_layer_freq"])
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    if pattern != [0] * dense + [1] * (len(pattern) - dense):
        raise q.refusal("model.moe", why=f"{why}, and its dense layers come first")
    arguments |= {"first_dense_layers": dense, "num_groups": moe["num_groups"], "topk_groups": moe["topk_groups"]}
    return Shape("deepseek_v3", {**arguments, **mla, "q_lora_rank": mla["q_lora_rank"] or 0})


def llama_multiplier(hidden_size: int, intermediate_size: int) -> float:
    """The `ffn_dim_multiplier` that makes an MLP this wide where `multiple_of` is the width itself.

    Source: torchtitan/models/llama3/model/model.py of 0.2.2 (FeedForward): int(multiplier * int(8 / 3 * dim)), rounded up to a
    multiple of `multiple_of`.
    """
    return min(1.0, intermediate_size / int(2 * 4 * hidden_size / 3))
