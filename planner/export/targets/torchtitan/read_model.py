"""The model of a torchtitan configuration: a published flavour, or the arguments in a module that registers a plan's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.export.settings import Settings
from planner.export.spellings import peeked

_PRESETS: Mapping[tuple[str, str], str] = {
    ("llama3", "1B"): "llama-3.2-1b", ("llama3", "3B"): "llama-3.2-3b", ("llama3", "8B"): "llama-3.1-8b", ("llama3", "70B"): "llama-3.1-70b",
    ("llama3", "405B"): "llama-3.1-405b", ("qwen3", "8B"): "qwen3-8b", ("qwen3", "32B"): "qwen3-32b", ("qwen3", "30B-A3B"): "qwen3-30b-a3b",
    ("qwen3", "235B-A22B"): "qwen3-235b-a22b", ("deepseek_v3", "671B"): "deepseek-v3",
    ("llama2", "7B"): "llama-2-7b", ("llama2", "13B"): "llama-2-13b", ("llama2", "70B"): "llama-2-70b",
}  # fmt: skip
"""torchtitan/models/llama3, qwen3 and deepseek_v3 (__init__.py)."""
PRESETS_OF_EXPERTS = frozenset({"qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3"})
_LAYERS = {"llama-3.2-1b": 16, "llama-3.2-3b": 28, "llama-3.1-8b": 32, "llama-3.1-70b": 80, "llama-3.1-405b": 126, "qwen3-8b": 36,
           "qwen3-32b": 64, "qwen3-30b-a3b": 48, "qwen3-235b-a22b": 94, "deepseek-v3": 61, "llama-2-7b": 32, "llama-2-13b": 40, "llama-2-70b": 80}  # fmt: skip
_NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("model.dim",), "num_layers": ("model.n_layers",), "num_attention_heads": ("model.n_heads",),
    "num_key_value_heads": ("model.n_kv_heads",), "head_dim": ("model.head_dim",), "vocab_size": ("model.vocab_size", "ends.vocab_size"),
    "intermediate_size": ("model.hidden_dim", "model.inter_dim", "model.dense_hidden_dim"),
    "max_position_embeddings": ("model.max_seq_len", "rope.max_seq_len"),
    "tie_word_embeddings": ("model.enable_weight_tying", "ends.enable_weight_tying"),
}  # fmt: skip
_MOE_NAMES: Mapping[str, tuple[str, ...]] = {
    "num_experts": ("experts.num_experts", "model.num_experts"), "top_k": ("experts.top_k", "model.top_k", "model.router_top_k"),
    "expert_intermediate_size": ("model.moe_inter_dim", "model.moe_hidden_dim"),
    "num_shared_experts": ("experts.num_shared_experts", "model.num_shared_experts"),
    "num_groups": ("experts.num_expert_groups", "model.router_num_expert_groups"),
    "topk_groups": ("experts.num_limited_groups", "model.router_num_limited_groups"),
    "first_dense_layers": ("model.n_dense_layers",),
}  # fmt: skip
_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_DISPATCHERS = {"standard": ("alltoall", None), "deepep": ("flex", "deepep"), "hybridep": ("flex", "hybridep")}


def read_model(settings: Settings, row: dict[str, Any]) -> None:
    """Adds the model's fields, and its attention and dispatcher where its arguments say them."""
    name, flavour = peeked(settings, "model.name"), peeked(settings, "model.flavor")
    own = peeked(settings, "model.class")
    preset = _PRESETS.get((str(name), str(flavour)))
    if own is None:
        if preset is not None:
            settings.take("model.name", "model.preset")
            settings.take("model.flavor", "model.preset")
            row["model.preset"], row["model.num_layers"] = preset, _LAYERS[preset]
        return
    for key in ("model.name", "model.flavor", "model.class"):
        settings.take(key)
    for field, names in _NAMES.items():
        row[f"model.{field}"] = _first(settings, names, f"model.{field}")
    if own == "TransformerModelArgs":
        row["model.intermediate_size"] = _llama_width(settings, row["model.hidden_size"])
    # qwen3's own builders of layers always put the norms in.
    norm = settings.value("model.qk_norm", "model.qk_norm", default=own.startswith("family._build_qwen3"))
    row["model.qk_norm"] = "per_head" if norm else "none"
    settings.take("model.moe_enabled", "model.moe")
    if _first(settings, _MOE_NAMES["num_experts"], "model.moe") is not None:
        _experts(settings, row)
    if settings.has("model.kv_lora_rank"):
        row["model.mla"] = {field: settings.value(f"model.{field}", "model.mla") for field in _MLA}
        # 0 means that queries are one full matrix.
        row["model.mla"]["q_lora_rank"] = row["model.mla"]["q_lora_rank"] or None
        row["model.head_dim"] = None
        row["model.num_key_value_heads"] = None
    _attention(settings, row)
    for prefix in ("rope", "ends", "experts", "model"):
        for key in ("dim", "theta", "score_func", "route_norm", "score_before_experts", "mscale", "router_score_func", "router_route_norm",
                    "non_blocking_capacity_factor"):  # fmt: skip
            settings.take(f"{prefix}.{key}")


def _first(settings: Settings, names: tuple[str, ...], field: str) -> Any:
    for name in names:
        if settings.has(name):
            return settings.value(name, field)
    return None


def _llama_width(settings: Settings, hidden_size: Any) -> int | None:
    """Width of the MLP; torchtitan/models/llama3/model/model.py of 0.2.2 (FeedForward)."""
    # Both have defaults in TransformerModelArgs, which a module may leave in place.
    multiple = settings.value("model.multiple_of", "model.intermediate_size", default=256)
    multiplier = settings.value("model.ffn_dim_multiplier", "model.intermediate_size")
    if type(hidden_size) is not int or type(multiple) is not int or multiple < 1:
        return None
    width = int(2 * 4 * hidden_size / 3)
    if isinstance(multiplier, int | float):
        width = int(multiplier * width)
    return -(-width // multiple) * multiple


def _experts(settings: Settings, row: dict[str, Any]) -> None:
    moe = {field: _first(settings, names, "model.moe") for field, names in _MOE_NAMES.items()}
    if moe["num_shared_experts"]:
        moe["shared_expert_intermediate_size"] = moe["expert_intermediate_size"]
    row["model.moe"] = {field: value for field, value in moe.items() if value is not None}
    if not row["model.intermediate_size"]:
        row["model.intermediate_size"] = None


def _attention(settings: Settings, row: dict[str, Any]) -> None:
    kind = settings.value("model.attn_type", "training.attention_kernel") or settings.value(
        "model.attn_backend", "training.attention_kernel"
    )
    settings.take("model.attn_mask_type", "training.attention_kernel")
    row["training.attention"] = "flash"
    row["training.attention_kernel"] = "flex" if kind == "flex" else None
    row["training.mean_document_length"] = settings.value("constant.DOCUMENT_LENGTH", "training.mean_document_length")
    backend = settings.value("model.moe_comm_backend", "moe_dispatcher", "flex_backend")
    if backend in _DISPATCHERS:
        row["moe_dispatcher"], row["flex_backend"] = _DISPATCHERS[backend]
