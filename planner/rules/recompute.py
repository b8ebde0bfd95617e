"""Rules on recomputation: which modes, counts of layers and modules each framework can be told to recompute."""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.job import Job
from cost_models.strategies.fields import RECOMPUTE_MODULES, Recompute, RecomputeMethod
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule, indivisible, only

_CORE = "megatron/core/transformer/transformer_config.py"
_ARGUMENTS = "megatron/training/arguments.py"
_CORE_ATTENTION = 1 << RECOMPUTE_MODULES.index("core_attn")
_MOE_MODULES = sum(1 << RECOMPUTE_MODULES.index(name) for name in ("moe", "moe_act", "shared_experts"))
_MLA_MODULES = 1 << RECOMPUTE_MODULES.index("mla_up_proj")
_LEAVE_MODULES = "Leave recompute_modules out."


def _selective(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.recompute == Recompute.SELECTIVE)


def _counted(_job: Job, s: Strategies) -> Bools:
    """Whether full recomputation is anything but every layer as a unit of its own."""
    by_count = (s.recompute_method == RecomputeMethod.BLOCK) | (s.recompute_num_layers > 1)
    return np.asarray((s.recompute == Recompute.FULL) & by_count)


def _not_every_nth(_job: Job, s: Strategies) -> Bools:
    """Whether a count cannot be reached by recomputing every n-th layer of a chunk, or units hold several layers."""
    # torchtitan before 0.3 takes n, not a count: every n-th layer. A count that divides the chunk is layers / n of it.
    chunk = s.layouts.largest_chunk_layers_LK.max(axis=1)[s.layout]
    count = np.maximum(s.recompute_num_layers, 1.0)
    uneven = (s.recompute_method == RecomputeMethod.BLOCK) & indivisible(chunk, count)
    units = (s.recompute_method == RecomputeMethod.UNIFORM) & (count > 1)
    return np.asarray((s.recompute == Recompute.FULL) & (uneven | units))


def _block(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.recompute_method == RecomputeMethod.BLOCK)


def _modules(s: Strategies, bits: int) -> Bools:
    return np.asarray((s.recompute_modules & bits) != 0)


def _any_modules(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.recompute_modules != 0)


def _later_modules(_job: Job, s: Strategies) -> Bools:
    return _modules(s, ~_CORE_ATTENTION & 0x7F)


def _modules_without_selective(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.recompute_modules != 0) & (s.recompute != Recompute.SELECTIVE))


def _moe_modules(_job: Job, s: Strategies) -> Bools:
    return _modules(s, _MOE_MODULES)


def _mla_modules(_job: Job, s: Strategies) -> Bools:
    return _modules(s, _MLA_MODULES)


def _mtp_units(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.recompute_method == RecomputeMethod.UNIFORM) & (s.recompute_num_layers != 1))


RECOMPUTE_RULES: tuple[Rule, ...] = (
    Rule(
        "recompute-unsupported", _selective, "{framework} has no selective recompute",
        "Set recompute to 'full' or 'none'.", "nanotron ParallelismArgs.recompute_layer; DeepSpeed activation_checkpointing; "
        "accelerate fsdp_activation_checkpointing",
        frameworks=frameworks_where(lambda facts: not facts.choices.selective_recompute), smallest_change="recompute selective -> full",
    ),
    Rule(
        "recompute-unsupported", _selective, "{framework} {version} has no selective recompute",
        "Set recompute to 'full' or 'none', or use version 2023.", "Megatron-DeepSpeed megatron/arguments.py", until="2023",
        frameworks=only("megatron-deepspeed"), smallest_change="recompute selective -> full",
    ),
    Rule(
        # accelerate's fsdp_activation_checkpointing and nanotron's recompute_layer are switches without a count.
        "recompute-unsupported", _counted, "{framework} recomputes either every layer or none, not "
        "{recompute_num_layers} by method '{recompute_method}'", "Leave recompute_method and recompute_num_layers out.",
        "nanotron ParallelismArgs.recompute_layer; accelerate fsdp_activation_checkpointing",
        frameworks=frameworks_where(lambda facts: not facts.choices.recompute_counts),
    ),
    Rule(
        "recompute-unsupported", _counted, "torchtitan {version} recomputes either every layer or none, not "
        "{recompute_num_layers} by method '{recompute_method}'", "Leave recompute_method and recompute_num_layers out.",
        "torchtitan 0.3 FullAC has no count", frameworks=only("torchtitan"), since="0.3",
    ),
    Rule(
        "recompute-unsupported", _not_every_nth, "torchtitan {version} recomputes every n-th layer, which does not make "
        "{recompute_num_layers} by method '{recompute_method}'",
        "Set recompute_method to 'block' and recompute_num_layers to a divisor of a stage's layers.",
        "torchtitan/distributed/activation_checkpoint.py (selective_ac_option)", frameworks=only("torchtitan"), until="0.3",
    ),
    # DeepSpeed's pipeline module takes an interval: every unit of that many layers is one checkpoint.
    Rule(
        "recompute-unsupported", _block, "deepspeed recomputes in uniform units, not in blocks",
        "Set recompute_method to 'uniform'.", "deepspeed/runtime/pipe/module.py (activation_checkpoint_interval)",
        frameworks=only("deepspeed"), smallest_change="recompute_method block -> uniform",
    ),
    Rule(
        "recompute-unsupported", _mtp_units, "a model with multi-token prediction can recompute only units of 1 layer, not of "
        "{recompute_num_layers}", "Set recompute_num_layers to 1.", "megatron/core/transformer/multi_token_prediction.py",
        frameworks=only("megatron"), when=lambda job: job.mtp_num_layers > 0,
        smallest_change="recompute_num_layers {recompute_num_layers} -> 1",
    ),
    Rule(
        "recompute-modules-unsupported", _any_modules, "recompute_modules is a setting of megatron, which {framework} does not have",
        _LEAVE_MODULES, _CORE,
        frameworks=frameworks_where(lambda facts: not facts.choices.recompute_modules),
    ),
    Rule(
        "recompute-modules-unsupported", _modules_without_selective, "recompute_modules needs recompute "
        "'selective', but it is '{recompute}'", "Set recompute to 'selective', or leave recompute_modules out.", _CORE, frameworks=only("megatron"),
    ),
    Rule(
        "recompute-modules-unsupported", _later_modules, "megatron {version} can recompute no module but core_attn",
        "Leave recompute_modules out, or use core 0.12.", _ARGUMENTS, frameworks=only("megatron"), until="0.12",
    ),
    Rule(
        "recompute-modules-unsupported", _moe_modules, "recompute_modules names parts of an MoE layer, but the model has no experts",
        _LEAVE_MODULES, _CORE, frameworks=only("megatron"), when=lambda job: job.model.moe is None,
    ),
    Rule(
        "recompute-modules-unsupported", _mla_modules, "recompute_modules names mla_up_proj, but the model has no multi-head latent attention",
        _LEAVE_MODULES, _CORE, frameworks=only("megatron"), when=lambda job: job.model.mla is None,
    ),
)  # fmt: skip
