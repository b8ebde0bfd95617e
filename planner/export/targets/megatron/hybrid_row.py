"""Settings of hybrids as parts of a row: the way back of `hybrid_settings`."""

from __future__ import annotations

from typing import Any

from planner.export.targets.megatron.hybrid_pattern import MAMBA2, Layers, layers_of_pattern
from planner.export.targets.megatron.hybrid_settings import HYBRID_MODEL_SINCE, STACKS, STAGES_SINCE
from planner.export.targets.megatron.layout import numbers_of_pattern
from planner.export.targets.megatron.names import NAMES, Values

DELTA_NETS = "gated_delta_net"
"""The value of --experimental-attention-variant."""


def _of(values: Values, name: str) -> Any:
    return values.get(name, NAMES[name].default)


def hybrid_layers(values: Values) -> Layers | None:
    """The layers of a pattern of blocks; None where there is no pattern."""
    text = values.get("hybrid_layer_pattern") or values.get("hybrid_override_pattern")
    if text is None:
        return None
    full = values.get("recompute_granularity") == "full"
    return layers_of_pattern(text, unit=int(values.get("recompute_num_layers") or 1) if full else 0)


def hybrid_row(values: Values, layers: int) -> dict[str, Any]:
    """The fields of the model that settings of hybrids say; empty for every other model."""
    found = hybrid_layers(values)
    if found is None:
        return _delta_nets(values, layers)
    row: dict[str, Any] = {"layer_types": found.types}
    if found.single:
        row["single_block_layers"] = True
    letters = {block[0] for block in found.blocks}
    if "M" in letters:
        row["recurrent"] = _mamba2(values)
    elif "G" in letters:
        row["recurrent"] = _delta_net(values)
    return row


def oldest_release(values: Values) -> str | None:
    """The first release that takes the settings of a hybrid, where that is later than the planner's default; None for other models.

    Before it, patterns mark no stages and whole layers are not recomputed, so that the default's rules would refuse what runs.
    """
    if tuple(values.get("spec", ())) == STACKS[1]:
        return HYBRID_MODEL_SINCE
    return STAGES_SINCE if "hybrid_layer_pattern" in values else None


def _mamba2(values: Values) -> dict[str, Any]:
    width = _of(values, "mamba_head_dim")
    return {
        "kind": MAMBA2, "num_heads": values.get("mamba_num_heads") or max(2 * int(values["hidden_size"]) // width, 1),
        "head_dim": width, "num_groups": _of(values, "mamba_num_groups"), "state_size": _of(values, "mamba_state_dim"), "chunk_size": 128,
    }  # fmt: skip


def _delta_net(values: Values) -> dict[str, Any]:
    return {
        "kind": "gated-delta-net", "num_heads": _of(values, "linear_num_value_heads"), "head_dim": _of(values, "linear_value_head_dim"),
        "num_groups": _of(values, "linear_num_key_heads"), "state_size": _of(values, "linear_key_head_dim"),
        "conv_kernel": _of(values, "linear_conv_kernel_dim"),
    }  # fmt: skip


def _delta_nets(values: Values, layers: int) -> dict[str, Any]:
    frequency = values.get("linear_attention_freq")
    if values.get("experimental_attention_variant") != DELTA_NETS or frequency is None:
        return {}
    # A number N means N - 1 delta nets before every layer that attends.
    numbers = (
        [int(layer % int(frequency) != 0) for layer in range(1, layers + 1)]
        if frequency.isdigit()
        else numbers_of_pattern(frequency, num_layers=layers)
    )
    types = ["linear_attention" if each else "full_attention" for each in numbers or ()]
    if "linear_attention" not in types:
        return {}
    return {"layer_types": types, "recurrent": _delta_net(values)}
