"""A model's shape in Megatron Core's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.frameworks.releases import precedes
from planner.export.quantities import Quantities
from planner.export.targets.megatron.hybrid_pattern import blocks_per_layer, has_pattern
from planner.export.targets.megatron.hybrid_settings import hybrid_settings
from planner.export.targets.megatron.layout import pattern
from planner.export.targets.megatron.names import Values

_NO_MODULE = "Megatron Core's layers have no such part"
_LOSS_COEFFICIENT = 0.01
"""Weight of the indexer's loss, which costs nothing: that of Megatron-Bridge's recipe for DeepSeek-V4."""
POSITIONS = {"rope": "rope", "learned": "learned_absolute", "none": "none"}
NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
BIASES = {(True, True): (True, False), (False, False): (False, False), ("qkv", False): (False, True)}
"""`add_bias_linear` and `add_qkv_bias` by the biases of attention and of the MLP."""


def model_settings(q: Quantities) -> Values:
    """The settings of the model's shape, or a refusal."""
    _check_parts(q)
    found: Values = {
        "num_layers": q["model.num_layers"] * blocks_per_layer(q),
        "hidden_size": q["model.hidden_size"],
        "num_attention_heads": q["model.num_attention_heads"],
        "normalization": NORMS[q["model.norm"]],
        "swiglu": bool(q["model.gated_mlp"]),
        "untie_embeddings_and_output_weights": not q["model.tie_word_embeddings"],
        "vocab_size": q["model.vocab_size"],
        "make_vocab_size_divisible_by": 128,
        "attention_output_gate": bool(q["model.attention_gate"]),
        "mtp_num_layers": q["model.mtp_num_layers"] or None,
    }
    return {
        **found,
        **_widths(q),
        **_positions(q),
        **_attention(q),
        **_windows(q),
        **_biases(q),
        **_mixture(q),
        **hybrid_settings(q),
    }


def _check_parts(q: Quantities) -> None:
    layernorm = q.peek("model.norm") == "layernorm"
    q.implied("model.norm_bias", layernorm, why="its LayerNorm has a bias and its RMSNorm has none")
    q.implied("model.norm_weight", True, why="its norms have a weight")
    q.implied("model.norms_per_layer", 2, why="its layers have two norms")
    for part in ("head_bias", "parallel_block", "embedding_norm"):
        q.implied(f"model.{part}", False, why=_NO_MODULE)
    q.implied("model.final_norm", True, why="a norm follows its last layer")
    q.implied("model.activation_parameters", 0, why=_NO_MODULE)
    if q.peek("model.attention_gate") and precedes(q.release, "0.16"):
        raise q.refusal("model.attention_gate", why="--attention-output-gate came with core 0.16")


def _widths(q: Quantities) -> Values:
    moe = q.peek("model.moe")
    # Where every layer has experts, no layer has the dense width, but a width must be said.
    width = q["model.intermediate_size"] or moe["expert_intermediate_size"]
    return {"ffn_hidden_size": width}


def _positions(q: Quantities) -> Values:
    kind = q.only("model.position_embedding", POSITIONS, why="Megatron Core has no such positions")
    longest, length = q["model.max_position_embeddings"], q.peek("training.seq_length")
    # Rotary positions have no table, so that the number is a limit alone, which the parser wants to hold the sequence.
    if kind != "learned":
        longest = max(longest or 0, length)
    return {"position_embedding_type": POSITIONS[kind], "max_position_embeddings": longest}


def _attention(q: Quantities) -> Values:
    mla, heads = q["model.mla"], q.peek("model.num_attention_heads")
    groups, width = q["model.num_key_value_heads"], q["model.head_dim"]
    norm = q.only("model.qk_norm", ["none", "per_head"], why="it normalizes queries and keys head by head")
    found: Values = {"qk_layernorm": norm == "per_head"}
    if q["model.attention_sinks"]:
        if precedes(q.release, "0.15"):
            raise q.refusal("model.attention_sinks", why="--softmax-type came with core 0.15")
        found["softmax_type"] = "learnable"
    if mla is not None:
        found |= _sparse(q, mla.get("indexer"))
        return found | {
            "multi_latent_attention": True, "q_lora_rank": mla["q_lora_rank"], "kv_lora_rank": mla["kv_lora_rank"],
            "qk_head_dim": mla["qk_nope_head_dim"], "qk_pos_emb_head_dim": mla["qk_rope_head_dim"],
            "v_head_dim": mla["v_head_dim"],
        }  # fmt: skip
    if groups != heads:
        found |= {"group_query_attention": True, "num_query_groups": groups}
    return found | {"kv_channels": width}


def _sparse(q: Quantities, indexer: Mapping[str, Any] | None) -> Values:
    """Sparse attention of DeepSeek-V3.2, whose indexer is trained on the keys that it chose."""
    if indexer is None:
        return {}
    if q.target != "megatron" or precedes(q.release, "0.19"):
        raise q.refusal("model.mla", why="sparse attention is said by arguments of Megatron-LM from core 0.19 on alone")
    return {
        "experimental_attention_variant": "dsa", "dsa_indexer_n_heads": indexer["num_heads"], "dsa_indexer_head_dim": indexer["head_dim"],
        "dsa_indexer_topk": indexer["top_k"], "dsa_indexer_loss_coeff": _LOSS_COEFFICIENT, "dsa_indexer_use_sparse_loss": True,
        "dsa_kernel_backend": "tilelang", "apply_rope_fusion": False,
    }  # fmt: skip


def _windows(q: Quantities) -> Values:
    window, kinds = q["model.sliding_window"], q["model.layer_types"]
    if not window:
        return {}
    # A pair of how many tokens before and behind its own a query sees.
    found: Values = {"window_size": f"{window - 1},0"}
    windowed = [int(kind != "full_attention") for kind in kinds or ()]
    if not all(windowed):
        if precedes(q.release, "0.15"):
            raise q.refusal("model.layer_types", why="--window-attn-skip-freq came with core 0.15")
        found["window_attn_skip_freq"] = pattern(windowed)
    return found


def _biases(q: Quantities) -> Values:
    attention, mlp = q["model.attention_bias"], q["model.mlp_bias"]
    if (attention, mlp) not in BIASES:
        instead = {"model.attention_bias": mlp} if mlp else {"model.attention_bias": "qkv"}
        field = "model.attention_bias" if not mlp else "model.mlp_bias"
        raise q.refusal(field, why="its linear layers have biases all together, or those of q, k and v alone", nearest=instead)  # fmt: skip
    every, qkv = BIASES[attention, mlp]
    return {"add_bias_linear": every, "add_qkv_bias": qkv}


def _mixture(q: Quantities) -> Values:
    moe: Mapping[str, Any] | None = q["model.moe"]
    if moe is None:
        return {}
    found: Values = {
        "num_experts": moe["num_experts"],
        "moe_router_topk": moe["top_k"],
        "moe_ffn_hidden_size": moe["expert_intermediate_size"],
        "moe_expert_capacity_factor": moe["capacity_factor"],
    }
    # The pattern of a hybrid's blocks says which of them have experts.
    if not all(moe["moe_layer_freq"]) and not has_pattern(q):
        found["moe_layer_freq"] = pattern(moe["moe_layer_freq"])
    shared = moe["num_shared_experts"] * moe["shared_expert_intermediate_size"]
    if shared:
        found["moe_shared_expert_intermediate_size"] = shared
    if moe["shared_expert_gate"]:
        if precedes(q.release, "0.16"):
            raise q.refusal("model.moe", why="--moe-shared-expert-gate came with core 0.16")
        found["moe_shared_expert_gate"] = True
    if moe["num_groups"] > 1:
        found |= {"moe_router_num_groups": moe["num_groups"], "moe_router_group_topk": moe["topk_groups"]}
    # The GPUs that run the grouped products of Transformer Engine: megatron/training/arguments.py asks for capability 8.
    grouped = q.peek("training.transformer_impl") == "transformer-engine" and q.plan.generation != "volta"
    return found | {"moe_grouped_gemm": grouped, **_router(q, moe)}


def _router(q: Quantities, moe: Mapping[str, Any]) -> Values:
    """The router's bias: it has one where all linear layers do, or the one that balances experts, which needs sigmoid scores."""
    everywhere = bool(q.peek("model.mlp_bias"))
    if everywhere and not moe["router_bias"]:
        raise q.refusal("model.moe", why="its router has a bias where its linear layers have", nearest={"model.mlp_bias": False})  # fmt: skip
    if not moe["router_bias"] or everywhere:
        return {}
    return {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"}
