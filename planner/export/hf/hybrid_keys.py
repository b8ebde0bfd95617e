"""How the keys of a hybrid's `config.json` follow from its model: the inverse of `cost_models.inputs.hf.hybrid_readers`.

Whether a family can say a model is not known here: `model_config` reads the keys back and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cost_models.specs.model import LayerKind, Model

Key = Callable[[Model], Any]
_LETTERS: Final = {"recurrent": "M", "attention": "*"}


def letter(kind: LayerKind) -> str:
    """A layer of one block in Nemotron-H's pattern."""
    return _LETTERS.get(kind.mixer, "E" if kind.is_moe else "-")


def _of(field: str, *, without: Any = 1) -> Key:
    """A field of the recurrent mixer, or what a class takes where the model has none."""
    return lambda model: without if model.recurrent is None else getattr(model.recurrent, field)


def _types(name: str, *, attention: str = "full_attention") -> Key:
    return lambda model: [name if kind.recurs else attention for kind in model.layer_kinds]


def _attends(model: Model) -> list[int]:
    return [layer for layer, kind in enumerate(model.layer_kinds) if kind.mixer == "attention"]


def _first(layers: list[int]) -> int:
    return layers[0] if layers else 0


def _period(layers: list[int], num_layers: int) -> int:
    """Distance of the first two of these layers, or a period in which there is no second one."""
    # Layers at uneven distances come out wrong here, which reading the config back finds.
    return layers[1] - layers[0] if len(layers) > 1 else max(num_layers, _first(layers) + 1)


def _sparse(model: Model) -> list[int]:
    return [layer for layer, kind in enumerate(model.layer_kinds) if kind.is_moe]


def _expansion(model: Model) -> int:
    """Channels of the mixer over the hidden size."""
    return 2 if model.recurrent is None else max(model.recurrent.inner_size // model.hidden_size, 1)


def _shared_width(model: Model) -> int:
    return 1 if model.moe is None else model.moe.num_shared_experts * model.moe.shared_expert_intermediate_size


_MAMBA2: Final[Mapping[str, Key]] = {
    "mamba_n_heads": _of("num_heads"), "mamba_d_head": _of("head_dim"), "mamba_n_groups": _of("num_groups"),
    "mamba_d_state": _of("state_size"), "mamba_d_conv": _of("conv_kernel"), "mamba_expand": _expansion,
    "mamba_chunk_size": _of("chunk_size", without=256), "mamba_conv_bias": _of("conv_bias", without=True),
    "mamba_proj_bias": _of("in_bias", without=False),
}  # fmt: skip
_DELTA: Final[Mapping[str, Key]] = {
    "linear_num_value_heads": _of("num_heads"), "linear_num_key_heads": _of("num_groups"), "linear_value_head_dim": _of("head_dim"),
    "linear_key_head_dim": _of("state_size"), "linear_conv_kernel_dim": _of("conv_kernel"), "layer_types": _types("linear_attention"),
}  # fmt: skip
_LFM2: Final[Mapping[str, Key]] = {
    "layer_types": _types("conv"), "conv_bias": _of("conv_bias", without=False), "conv_L_cache": _of("conv_kernel"),
}  # fmt: skip
HYBRID_KEYS: Final[Mapping[str, Mapping[str, Key]]] = {
    "nemotron_h": {
        "hybrid_override_pattern": lambda model: "".join(letter(kind) for kind in model.layer_kinds),
        "mamba_num_heads": _of("num_heads"), "mamba_head_dim": _of("head_dim"), "n_groups": _of("num_groups"),
        "ssm_state_size": _of("state_size"), "conv_kernel": _of("conv_kernel"), "use_conv_bias": _of("conv_bias", without=True),
        "use_bias": _of("in_bias", without=False), "chunk_size": _of("chunk_size", without=128),
        "moe_shared_expert_intermediate_size": _shared_width,
    },
    "bamba": {**_MAMBA2, "attn_layer_indices": _attends},
    "falcon_h1": {
        **_MAMBA2, "mamba_d_ssm": _of("inner_size"), "projectors_bias": _of("out_bias", without=False),
        "mamba_rms_norm": lambda model: model.recurrent is not None and model.recurrent.gated_norm == "full",
    },
    "granitemoehybrid": {**_MAMBA2, "layer_types": _types("mamba", attention="attention")},
    "jamba": {
        "mamba_d_state": _of("state_size"), "mamba_d_conv": _of("conv_kernel"), "mamba_expand": _expansion,
        "mamba_dt_rank": _of("dt_rank"), "mamba_conv_bias": _of("conv_bias", without=True),
        "mamba_proj_bias": _of("in_bias", without=False),
        "attn_layer_offset": lambda model: _first(_attends(model)),
        "attn_layer_period": lambda model: _period(_attends(model), model.num_layers),
        "expert_layer_offset": lambda model: _first(_sparse(model)),
        "expert_layer_period": lambda model: _period(_sparse(model), model.num_layers),
        "num_experts": lambda model: 1 if model.moe is None else model.moe.num_experts,
    },
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"), _DELTA),
    "lfm2": {**_LFM2, "block_auto_adjust_ff_dim": lambda _model: False},
    "lfm2_moe": _LFM2,
}  # fmt: skip
"""Keys of each family of hybrids that other families do not have, or mean otherwise."""
