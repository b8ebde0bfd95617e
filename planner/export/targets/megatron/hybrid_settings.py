"""The settings of models whose layers do not all attend, and what runs them: Mamba-2 and gated delta nets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cost_models.frameworks.releases import precedes
from planner.export.quantities import Quantities, said
from planner.export.targets.megatron.hybrid_pattern import has_pattern, hybrid_pattern
from planner.export.targets.megatron.layout import pattern
from planner.export.targets.megatron.names import Values

STAGES_SINCE = "0.17"
"""Patterns mark stages from here on, under another name; before, each stage takes equally many blocks (megatron/core/ssm/mamba_block.py)."""
HYBRID_MODEL_SINCE = "0.18"
"""The release that renamed the model of a pattern (megatron/core/models/mamba became hybrid)."""
STACKS: Final = (
    ("megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"),
    ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"),
)
"""The values of --spec, before and since `HYBRID_MODEL_SINCE`."""
_MAMBA2: Final = {"conv_kernel": 4, "conv_bias": True, "in_bias": False, "out_bias": False, "gated_norm": "full", "chunk_size": 128}  # fmt: skip
"""What no argument changes of the Mamba-2 mixer: defaults of its constructor (megatron/core/ssm/mamba_mixer.py)."""
_DELTA_NET: Final = {"conv_bias": False, "in_bias": False, "out_bias": False, "gated_norm": "per_head", "chunk_size": 64}  # fmt: skip
"""Likewise of gated delta nets (megatron/core/ssm/gated_delta_net.py); the chunk is flash-linear-attention's."""
ROTARY_PERCENT: Final = 0.25
"""Share of a head that Qwen3-Next and Qwen3.5 rotate."""
_BEYOND = (
    "A plan does not say a model's activation function. The published hybrids without gated MLPs, Nemotron-H and its successors, have squared "
    "ReLU, for which --squared-relu stands; leave it out for GELU."
)
_SHARE = "A plan does not say what share of a head turns with its position: add --rotary-percent where that is not all of it (0.5 in Bamba)."
_ZERO_CENTRED = (
    "--apply-layernorm-1p and --rotary-percent 0.25 are those of Qwen3-Next and Qwen3.5, whose gated attention this model has; they cost "
    "nothing, and another model's may differ."
)


def hybrid_settings(q: Quantities) -> Values:
    """The settings of recurrent layers and of layers of one block; empty for every other model."""
    recurrent, single = q["model.recurrent"], q["model.single_block_layers"]
    if recurrent is None and not single:
        return {}
    field = "model.recurrent" if recurrent is not None else "model.single_block_layers"
    if q.target != "megatron":
        why = "it builds hybrids with a model of their own, which is not written"
        raise q.refusal(field, why=why, hint="Export the plan for megatron, whose arguments say it.")
    q.only(
        "training.transformer_impl", ["transformer-engine"], why="its hybrids have layers of Transformer Engine alone"
    )
    if q.peek("model.sliding_window"):
        raise q.refusal("model.sliding_window", why="its hybrids have no windows layer by layer")
    return _stack(q, recurrent) if has_pattern(q) else _delta_nets(q, recurrent)


def _stack(q: Quantities, recurrent: Mapping[str, Any] | None) -> Values:
    if recurrent is not None and recurrent["kind"] != "mamba2":
        raise q.refusal("model.single_block_layers", why="an MLP follows each of its gated delta nets")
    _check_stack(q)
    types, moe = q["model.layer_types"], q.peek("model.moe")
    freq = moe["moe_layer_freq"] if moe is not None else [0] * len(types)
    single, stages = bool(q.peek("model.single_block_layers")), q.plan.layers_per_stage
    unmarked = precedes(q.release, STAGES_SINCE)
    blocks = hybrid_pattern(types, freq, [sum(stages)] if unmarked else stages, single=single)
    found: Values = {
        **(
            {"is_hybrid_model": True, "hybrid_override_pattern": blocks}
            if unmarked
            else {"hybrid_layer_pattern": blocks}
        ),
        "spec": STACKS[not precedes(q.release, HYBRID_MODEL_SINCE)],
        "squared_relu": not q.peek("model.gated_mlp"),
    }
    if recurrent is None:
        return found
    _check_fixed(q, recurrent, _MAMBA2, "its Mamba-2 mixer")
    return found | {
        "mamba_num_heads": recurrent["num_heads"], "mamba_head_dim": recurrent["head_dim"],
        "mamba_num_groups": recurrent["num_groups"], "mamba_state_dim": recurrent["state_size"],
    }  # fmt: skip


def _check_stack(q: Quantities) -> None:
    """Refuses parts of a model that the layers of a pattern do not have (megatron/core/models/hybrid/hybrid_layer_specs.py)."""
    refused = (
        ("model.mla", q.peek("model.mla"), "the attention of its hybrids has whole heads"),
        (
            "model.qk_norm",
            q.peek("model.qk_norm") != "none",
            "the attention of its hybrids has no norms of queries and keys",
        ),
        (
            "model.mtp_num_layers",
            q.peek("model.mtp_num_layers"),
            "a plan does not say the blocks of a hybrid's prediction modules",
        ),
    )
    for field, holds, why in refused:
        if holds:
            raise q.refusal(field, why=why)


def _delta_nets(q: Quantities, recurrent: Mapping[str, Any]) -> Values:
    _check_fixed(q, recurrent, _DELTA_NET, "its gated delta net")
    found: Values = {
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": pattern([int(kind == "linear_attention") for kind in q["model.layer_types"]]),
        "linear_conv_kernel_dim": recurrent["conv_kernel"],
        "linear_key_head_dim": recurrent["state_size"],
        "linear_value_head_dim": recurrent["head_dim"],
        "linear_num_key_heads": recurrent["num_groups"],
        "linear_num_value_heads": recurrent["num_heads"],
    }
    if is_qwen(q):
        found |= {"apply_layernorm_1p": True, "rotary_percent": ROTARY_PERCENT}
    return found


def is_qwen(q: Quantities) -> bool:
    """Whether the model is of the kind of Qwen3-Next: gated delta nets beside rotary attention with a gate."""
    return bool(q.peek("model.attention_gate")) and q.peek("model.position_embedding") == "rope"


def _check_fixed(q: Quantities, recurrent: Mapping[str, Any], fixed: Mapping[str, Any], whose: str) -> None:
    for name, value in fixed.items():
        if recurrent[name] != value:
            raise q.refusal(
                "model.recurrent", why=f"{whose} has {name} {said(value)}, which no argument changes, not {said(recurrent[name])}",
                nearest={f"model.recurrent.{name}": value},
            )  # fmt: skip


def script_of(q: Quantities) -> str:
    """The program that trains a plan's model, in the root of Megatron-LM's repository."""
    if not has_pattern(q):
        return "pretrain_gpt.py"
    return "pretrain_mamba.py" if precedes(q.release, HYBRID_MODEL_SINCE) else "pretrain_hybrid.py"


def packages_of(q: Quantities) -> tuple[str, ...]:
    """What has to be installed for the kernels of recurrent layers, as notes."""
    recurrent = q.peek("model.recurrent")
    if recurrent is None:
        return ()
    names = (
        "mamba-ssm and causal-conv1d" if recurrent["kind"] == "mamba2" else "flash-linear-attention and causal-conv1d"
    )
    return (f"The recurrent layers need the packages {names}.",)


def beyond_the_plan(q: Quantities) -> tuple[str, ...]:
    """What was written of a hybrid although the plan does not say it, as notes."""
    if has_pattern(q):
        turns = q.peek("model.position_embedding") == "rope"
        return (*(() if q.peek("model.gated_mlp") else (_BEYOND,)), *((_SHARE,) if turns else ()))
    return (_ZERO_CENTRED,) if q.peek("model.recurrent") is not None and is_qwen(q) else ()
