"""Rules on models whose layers do not all attend: which framework has such layers, and what its degrees must divide.

Megatron builds Mamba-2 and gated delta nets itself; fsdp and DeepSpeed run transformers' modules, whose recurrent layers nothing splits.
"""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.specs.recurrent import RecurrentKind
from cost_models.strategies.fields import Recompute
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.elsewhere import has_layers
from planner.rules.rule import Rule, always, indivisible

_MIXER = "megatron/core/ssm/mamba_mixer.py"
_CONTEXT = "megatron/core/ssm/mamba_context_parallel.py"
_PATTERN = "megatron/core/ssm/mamba_block.py and mamba_hybrid_layer_allocation.py"


def _recurs(job: Job, *kinds: RecurrentKind) -> bool:
    return job.model.recurrent is not None and job.model.recurrent.kind in kinds


def _mamba2(job: Job) -> bool:
    return _recurs(job, "mamba2")


def _delta_net(job: Job) -> bool:
    return _recurs(job, "gated-delta-net")


def _any_recurrent(job: Job) -> bool:
    return job.model.recurrent is not None


def _split_in_turn(job: Job) -> bool:
    """Whether the framework has the model's recurrent layers at all: heads of others are not its to divide."""
    return job.model.recurrent is not None and job.model.recurrent.kind in job.framework.choices.recurrent


def _without_modules(job: Job) -> bool:
    """Whether the framework has no module for some layer of the model in any release."""
    return not has_layers(job.model, job.framework.choices)


def _split_heads(job: Job, s: Strategies) -> Bools:
    r = job.model.recurrent
    assert r is not None
    return np.asarray(indivisible(r.num_heads, s.tp) | indivisible(r.num_groups, s.tp))


def _heads_over_context(job: Job, s: Strategies) -> Bools:
    r = job.model.recurrent
    assert r is not None
    heads = indivisible(r.num_heads, s.tp * s.cp)
    # Groups are copied to the ranks that share one of them, where there are fewer groups than ranks.
    held = r.num_groups / s.tp
    fewer = held < s.cp
    groups = np.where(fewer, indivisible(s.cp, held), indivisible(held, s.cp))
    if r.kind == "gated-delta-net":
        groups = indivisible(r.num_groups, s.tp * s.cp)
    return np.asarray((s.cp > 1) & (heads | groups.astype(np.bool_)))


def _tensor(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.tp > 1)


def _context(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.cp > 1)


# Until patterns could mark stages, each stage took an equal run of layers, and a stage was one run.
def _virtual(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.vpp > 1)


def _uneven(_job: Job, s: Strategies) -> Bools:
    uneven = [len(set(layout.layers)) > 1 for layout in s.layouts.table]
    return np.array(uneven, np.bool_)[s.layout]


def _stacked(job: Job) -> bool:
    """Whether Megatron builds the model as a stack of blocks: Mamba-2, or layers of one block each."""
    return _mamba2(job) or any(kind.num_blocks == 1 for kind in job.model.distinct_kinds)


def _stacked_experts(job: Job) -> bool:
    return _stacked(job) and job.model.moe is not None


def _whole_recomputed(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.recompute == Recompute.FULL)


def _parameters_sharded(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.zero == 3)


def _layers_offloaded(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_activation_layers > 0)


def _exchange_overlapped(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.overlap_moe_all_to_all)


_SPLITS = frameworks_where(lambda facts: facts.choices.splits_recurrent)
_WHOLE = frameworks_where(lambda facts: bool(facts.choices.recurrent) and not facts.choices.splits_recurrent)
HYBRID_RULES: tuple[Rule, ...] = (
    # The modules themselves come first: without them no degree matters.
    Rule(
        "layers-unsupported-by-framework", always, "{framework} {version} has no layers of the kind {mixer}",
        "Set training.framework to 'fsdp' or 'deepspeed', which run transformers' modules, or, for Mamba-2 and gated delta nets that "
        "stand in attention's place, to 'megatron'.",
        "torchtitan/models; nanotron/models; Megatron-DeepSpeed megatron/model; megatron/core/models/hybrid/hybrid_layer_specs.py",
        when=_without_modules,
    ),
    Rule(
        "layers-unsupported-by-framework", always, "megatron {version} has no gated delta nets",
        "Use framework_version 0.16 or later, which brought them.", "megatron/core/ssm/gated_delta_net.py",
        frameworks=_SPLITS, until="0.16", when=_delta_net,
    ),
    # Each rank computes whole heads, with the B and C that its heads share.
    Rule(
        "heads-not-divisible", _split_heads,
        "tp {tp} does not divide the {mixer_heads} heads and {mixer_groups} groups of the recurrent layers",
        "Use a tp that divides both: {mixer_tp_options}.", f"{_MIXER}; transformer_config.py (linear_num_key_heads)",
        frameworks=_SPLITS, when=_split_in_turn, smallest_change="tp {tp} -> {mixer_tp_fit}",
    ),
    Rule(
        "tensor-parallel-unsupported", _tensor, "{framework} cannot split recurrent layers of the kind {mixer} (tp {tp})",
        "Set tp to 1{or_another}.", "transformers' base_model_tp_plan leaves them whole; deepspeed/module_inject/auto_tp.py knows none",
        frameworks=_WHOLE, when=_any_recurrent, smallest_change="tp {tp} -> 1",
    ),
    Rule(
        "context-parallel-unsupported", _context,
        "{framework} {version} does not carry the state of recurrent layers over context-parallel ranks (cp {cp})",
        "Set cp to 1{or_another}.", "accelerate and DeepSpeed exchange keys and values or heads of attention alone",
        frameworks=_WHOLE, when=_any_recurrent, smallest_change="cp {cp} -> 1",
    ),
    Rule(
        "context-parallel-unsupported", _context, "megatron {version} has no context parallelism for gated delta nets (cp {cp})",
        "Set cp to 1, or use framework_version 0.18 or later.", "megatron/core/ssm/gated_delta_net.py before core 0.18",
        frameworks=_SPLITS, until="0.18", when=_delta_net, smallest_change="cp {cp} -> 1",
    ),
    Rule(
        "context-parallel-heads", _heads_over_context,
        "tp {tp} x cp {cp} does not divide the {mixer_heads} heads and {mixer_groups} groups of the recurrent layers, whose heads "
        "context parallelism shares out",
        "Lower cp or tp.", f"{_CONTEXT}; transformer_config.py (tp_cp_size)", frameworks=_SPLITS, when=_split_in_turn,
    ),
    Rule(
        "virtual-stages-unsupported", _virtual, "megatron {version} has no virtual stages for models with Mamba layers (vpp {vpp})",
        "Set vpp to 1, or use framework_version 0.17 or later, whose --hybrid-layer-pattern marks stages.", _PATTERN,
        frameworks=_SPLITS, until="0.17", when=_stacked, smallest_change="vpp {vpp} -> 1",
    ),
    Rule(
        "split-unsupported", _uneven, "megatron {version} gives every stage of a model with Mamba layers equally many, not {layers_per_stage}",
        "Use a pp that divides the layers, or framework_version 0.17 or later, whose --hybrid-layer-pattern marks stages.", _PATTERN,
        frameworks=_SPLITS, until="0.17", when=_stacked,
    ),
    # What the stack of blocks does not do, although Megatron's other models do it.
    Rule(
        "layers-unsupported-by-framework", always, "megatron {version} has no experts in a model with Mamba layers",
        "Use framework_version 0.16 or later, which brought them.", "megatron/core/ssm/mamba_hybrid_layer_allocation.py (Symbols)",
        frameworks=_SPLITS, until="0.16", when=_stacked_experts,
    ),
    Rule(
        "recompute-unsupported", _whole_recomputed, "megatron {version} recomputes no whole layers of a model with Mamba layers",
        "Set recompute to 'selective' or 'none', or use framework_version 0.18 or later.",
        "megatron/core/ssm/mamba_block.py (forward takes no heed of recompute_granularity)", frameworks=_SPLITS, until="0.18", when=_stacked,
        smallest_change="recompute full -> selective",
    ),
    Rule(
        "zero-unsupported", _parameters_sharded,
        "Megatron-FSDP of megatron {version} gathers all Mamba layers at once, not one by one (zero {zero})",
        "Set zero to 1, or use framework_version 0.19 or later.", "megatron/core/distributed/fsdp/mcore_fsdp_adapter.py (fsdp_unit_modules)",
        frameworks=_SPLITS, until="0.19", when=_stacked, smallest_change="zero {zero} -> 1",
    ),
    Rule(
        "offload-unsupported", _layers_offloaded, "megatron does not send layers of a model with Mamba layers to the host",
        "Set offload.activation_layers to 0.", "megatron/core/models/hybrid/hybrid_block.py (no offload context)", frameworks=_SPLITS,
        when=_stacked, smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    Rule(
        "overlap-unsupported", _exchange_overlapped, "megatron cannot overlap the experts' all-to-all in a model with Mamba layers",
        "Set overlap.moe_all_to_all to false.", "megatron/core/models/hybrid/hybrid_model.py (no build_schedule_plan)", frameworks=_SPLITS,
        when=_stacked_experts, smallest_change="overlap.moe_all_to_all true -> false",
    ),
)  # fmt: skip
