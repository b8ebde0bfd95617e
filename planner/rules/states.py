"""Rules on model states and memory savers: ZeRO stages and shard groups, optimizer, recompute, overlap, offload."""

from __future__ import annotations

import numpy as np

from cost_models.job import Job
from cost_models.strategy import RECOMPUTE_MODULES, Bools, Recompute, RecomputeMethod, Strategies
from planner.rules.rule import Rule, always, indivisible, one_of, only

_CORE = "megatron/core/transformer/transformer_config.py"
_ARGUMENTS = "megatron/training/arguments.py"
_CORE_ATTENTION = 1 << RECOMPUTE_MODULES.index("core_attn")
_MOE_MODULES = sum(1 << RECOMPUTE_MODULES.index(name) for name in ("moe", "moe_act", "shared_experts"))
_MLA_MODULES = 1 << RECOMPUTE_MODULES.index("mla_up_proj")


def _zero(job: Job, s: Strategies) -> Bools:
    return ~one_of(s.zero, job.runtime.supports_zero)


def _sharded_gradients(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.zero >= 2)


def _version_stated(job: Job) -> bool:
    """A stack known only by its date may carry what its release did not (InternEvo's runs are such)."""
    return "framework_version" not in job.training.assumed


def _sharded_gradients_pipelined(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero >= 2) & (s.pp > 1))


def _sharded_but_reduced_once(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero >= 2) & ~s.grad_sync_each)


def _zero3_tensor(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero == 3) & (s.tp > 1))


def _shard_size(_job: Job, s: Strategies) -> Bools:
    return indivisible(s.dp_cp, s.zero_shard_size)


def _param_shard_size(_job: Job, s: Strategies) -> Bools:
    return indivisible(s.zero_shard_size, s.zero_param_shard_size)


def _partial(s: Strategies) -> Bools:
    return np.asarray((s.zero >= 1) & (s.zero_shard_size != s.dp_cp))


def _partial_shards(_job: Job, s: Strategies) -> Bools:
    return _partial(s)


def _partial_below_three(_job: Job, s: Strategies) -> Bools:
    return np.asarray(_partial(s) & (s.zero < 3))


def _shards_part_of_context(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero >= 1) & indivisible(s.zero_shard_size, s.cp))


def _instances_of_experts(_job: Job, s: Strategies) -> Bools:
    instances = np.where(s.zero >= 1, s.dp_cp / s.zero_shard_size, 1.0)
    return np.asarray((instances > 1) & indivisible(s.expert_dp, instances))


def _replicates_whole(_job: Job, s: Strategies) -> Bools:
    whole = (s.zero == 0) | (s.zero_shard_size == s.cp)
    return np.asarray(whole & (s.dp > 1) & ((s.tp > 1) | (s.cp > 1)))


def _hpz(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero_param_shard_size != s.zero_shard_size) & (s.zero >= 1))


def _hpz_below_three(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero_param_shard_size != s.zero_shard_size) & (s.zero != 3))


def _eight_bit(job: Job) -> bool:
    return job.training.optimizer == "adam-8bit"


def _selective(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.recompute == Recompute.SELECTIVE)


def _counted(_job: Job, s: Strategies) -> Bools:
    """Anything but every layer, a unit each."""
    by_count = (s.recompute_method == RecomputeMethod.BLOCK) | (s.recompute_num_layers > 1)
    return np.asarray((s.recompute == Recompute.FULL) & by_count)


def _not_every_nth(_job: Job, s: Strategies) -> Bools:
    """A count that is not every n-th layer of a chunk, or units of several layers."""
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


def _tp_overlap_unsplit(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.overlap_tp_comm & (s.tp > 1) & ~s.sequence_parallel)


def _tp_overlap(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.overlap_tp_comm & (s.tp > 1))


def _gather_without_reduce(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.overlap_param_gather & ~s.overlap_grad_reduce)


def _any_offload(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_optimizer_fraction > 0) | s.offload_parameters | (s.offload_activation_layers > 0))


def _optimizer_offload(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_optimizer_fraction > 0)


def _parameter_offload(_job: Job, s: Strategies) -> Bools:
    return s.offload_parameters


def _activation_offload_mixed(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.offload_activation_layers > 0) & ((s.recompute != Recompute.NONE) | (s.pp > 1)))


def _parameters_below_three(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.offload_parameters & (s.zero < 3))


def _half_offloaded(_job: Job, s: Strategies) -> Bools:
    together = s.offload_parameters == (s.offload_optimizer_fraction == 1)
    partly = (s.offload_optimizer_fraction > 0) & (s.offload_optimizer_fraction < 1)
    return np.asarray(partly | ~together)


_LEAVE_MODULES = "Leave recompute_modules out."
STATE_RULES: tuple[Rule, ...] = (
    Rule(
        "zero-unsupported", _zero, "{framework} has no zero {zero}", "Choose one of zero {zeros}.",
        "torchtitan and FSDP2 shard all three states; nanotron optimizer.zero_stage; DeepSpeed engine",
    ),
    Rule(
        "zero-unsupported", _sharded_gradients, "megatron {version} has no zero {zero}; Megatron-FSDP came with core 0.12",
        "Choose zero 0 or 1.", _ARGUMENTS, frameworks=only("megatron"), until="0.12", when=_version_stated,
        smallest_change="zero {zero} -> 1",
    ),
    Rule(
        "zero-with-pipeline", _sharded_gradients_pipelined, "zero {zero} and pp {pp} exclude each other in {framework}",
        "Use zero 0 or 1 with pipelines, or pp 1.", "deepspeed/runtime/pipe/engine.py",
        frameworks=only("deepspeed", "megatron-deepspeed"), smallest_change="zero {zero} -> 1",
    ),
    Rule(
        "zero-unsupported", _sharded_but_reduced_once,
        "grad_sync 'last' and zero {zero} exclude each other in deepspeed: it keeps no whole gradients to reduce later",
        "Leave grad_sync out.", "deepspeed/runtime/engine.py (no_sync)", frameworks=only("deepspeed"),
        smallest_change="grad_sync last -> each",
    ),
    Rule(
        "zero-with-tensor-parallel", _zero3_tensor, "zero 3 and tp {tp} exclude each other in deepspeed {version}",
        "Use zero 2 with tensor parallelism, tp 1, or 0.19.4.", "deepspeed/runtime/engine.py (_configure_tensor_parallel)",
        frameworks=only("deepspeed"), until="0.19.4", smallest_change="zero 3 -> 2",
    ),
    Rule(
        "zero-shard-size-not-divisible", _shard_size, "zero_shard_size {zero_shard_size} does not divide dp x cp = {dp_cp}",
        "Choose a divisor of dp x cp.", "megatron/core/parallel_state.py; torchtitan dp_replicate x dp_shard",
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-not-divisible", _param_shard_size,
        "zero_param_shard_size {zero_param_shard_size} does not divide zero_shard_size {zero_shard_size}",
        "Choose a divisor of it.", "deepspeed/runtime/zero/config.py",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_shards, "{framework} shards over all of dp x cp = {dp_cp}, "
        "not {zero_shard_size}", "Leave zero_shard_size out.", "no such key in its configuration",
        frameworks=only("nanotron", "megatron-deepspeed"), smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_below_three, "deepspeed shards in groups (MiCS) only with zero 3, not {zero}",
        "Use zero 3, or leave zero_shard_size out.", "deepspeed/runtime/zero/mics.py", frameworks=only("deepspeed"),
        until="0.19.7",
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_shards, "deepspeed {version} shards over all of dp x cp = {dp_cp}, "
        "not {zero_shard_size}: MiCS was removed", "Leave zero_shard_size out.",
        "deepspeed/runtime/config.py (removed keys)", frameworks=only("deepspeed"), since="0.19.7",
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-not-divisible", _shards_part_of_context,
        "zero_shard_size {zero_shard_size} is not a multiple of cp {cp}, whose ranks always share one copy",
        "Choose a multiple of cp.", "torchtitan/distributed/parallel_dims.py; accelerate/parallelism_config.py (dp_shard x cp)",
        frameworks=only("torchtitan", "fsdp"), smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-not-divisible", _instances_of_experts,
        "dp x cp / zero_shard_size optimizer instances do not divide the expert data-parallel ranks, "
        "{tp_cp_dp} / (ep {ep} x etp {etp})", "Raise zero_shard_size, or lower ep.",
        "megatron/core/parallel_state.py (partial DistOpt shard factor)", frameworks=only("megatron"),
        when=lambda job: job.model.moe is not None, smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-with-tensor-parallel", _replicates_whole,
        "replicas of whole parameters exclude tp {tp} and cp {cp} in accelerate",
        "Use zero 2 or 3 with a zero_shard_size above cp.", "accelerate/parallelism_config.py (__post_init__)",
        frameworks=only("fsdp"), smallest_change="zero {zero} -> 3",
    ),
    Rule(
        "zero-param-shard-size-unsupported", _hpz, "{framework} has no second shard group for parameters",
        "Leave zero_param_shard_size out.", "ZeRO++ hpZ and MiCS are DeepSpeed's",
        frameworks=only("megatron", "megatron-deepspeed", "torchtitan", "fsdp", "nanotron"),
    ),
    Rule(
        "zero-param-shard-size-unsupported", _hpz_below_three, "zero_param_shard_size needs zero 3, not {zero}",
        "Use zero 3, or leave it out.", "deepspeed/runtime/zero/config.py (zero_hpz_partition_size)",
        frameworks=only("deepspeed"),
    ),
    Rule(
        "optimizer-unsupported", always, "{framework} has no optimizer '{optimizer}'", "Use 'adam' or 'sgd'.",
        "megatron/core/optimizer/__init__.py; nanotron optimizer config",
        frameworks=only("megatron", "megatron-deepspeed", "nanotron"), when=_eight_bit,
    ),
    Rule(
        "recompute-unsupported", _selective, "{framework} has no selective recompute",
        "Use recompute 'full' or 'none'.", "nanotron ParallelismArgs.recompute_layer; DeepSpeed activation_checkpointing; "
        "accelerate fsdp_activation_checkpointing",
        frameworks=only("nanotron", "deepspeed", "fsdp"), smallest_change="recompute selective -> full",
    ),
    Rule(
        "recompute-unsupported", _selective, "{framework} {version} has no selective recompute",
        "Use recompute 'full' or 'none'.", "Megatron-DeepSpeed megatron/arguments.py", until="2023",
        frameworks=only("megatron-deepspeed"), smallest_change="recompute selective -> full",
    ),
    Rule(
        "recompute-unsupported", _counted, "{framework} recomputes every layer or none, not {recompute_num_layers} by "
        "'{recompute_method}'", "Leave recompute_method and recompute_num_layers out.",
        "nanotron ParallelismArgs.recompute_layer; accelerate fsdp_activation_checkpointing",
        frameworks=only("fsdp", "nanotron"),
    ),
    Rule(
        "recompute-unsupported", _counted, "torchtitan {version} recomputes every layer or none, not "
        "{recompute_num_layers} by '{recompute_method}'", "Leave recompute_method and recompute_num_layers out.",
        "torchtitan 0.3 FullAC has no count", frameworks=only("torchtitan"), since="0.3",
    ),
    Rule(
        "recompute-unsupported", _not_every_nth, "torchtitan {version} recomputes every n-th layer, not "
        "{recompute_num_layers} by '{recompute_method}'", "Use recompute_method 'block' and a count that divides the layers.",
        "torchtitan/distributed/activation_checkpoint.py (selective_ac_option)", frameworks=only("torchtitan"), until="0.3",
    ),
    Rule(
        "recompute-unsupported", _block, "deepspeed recomputes in uniform units, not in blocks",
        "Use recompute_method 'uniform'.", "deepspeed/runtime/pipe/module.py (activation_checkpoint_interval)",
        frameworks=only("deepspeed"), smallest_change="recompute_method block -> uniform",
    ),
    Rule(
        "recompute-unsupported", _mtp_units, "with multi-token prediction layers, uniform units must be 1 layer, not "
        "{recompute_num_layers}", "Set recompute_num_layers to 1.", "megatron/core/transformer/multi_token_prediction.py",
        frameworks=only("megatron"), when=lambda job: job.model.mtp_num_layers > 0,
        smallest_change="recompute_num_layers {recompute_num_layers} -> 1",
    ),
    Rule(
        "recompute-modules-unsupported", _any_modules, "recompute_modules exist only in megatron, not in {framework}",
        _LEAVE_MODULES, _CORE,
        frameworks=only("megatron-deepspeed", "deepspeed", "torchtitan", "fsdp", "nanotron"),
    ),
    Rule(
        "recompute-modules-unsupported", _modules_without_selective, "recompute_modules needs recompute 'selective', "
        "not '{recompute}'", _LEAVE_MODULES, _CORE, frameworks=only("megatron"),
    ),
    Rule(
        "recompute-modules-unsupported", _later_modules, "megatron {version} recomputes only core_attn selectively",
        _LEAVE_MODULES, _ARGUMENTS, frameworks=only("megatron"), until="0.12",
    ),
    Rule(
        "recompute-modules-unsupported", _moe_modules, "recompute_modules names MoE parts, but the model has no experts",
        _LEAVE_MODULES, _CORE, frameworks=only("megatron"), when=lambda job: job.model.moe is None,
    ),
    Rule(
        "recompute-modules-unsupported", _mla_modules, "recompute_modules names mla_up_proj, but the model has no MLA",
        _LEAVE_MODULES, _CORE, frameworks=only("megatron"), when=lambda job: job.model.mla is None,
    ),
    Rule(
        "overlap-unsupported", _tp_overlap_unsplit, "overlap.tp_comm needs sequence parallelism in megatron",
        "Switch sequence_parallel on, or overlap.tp_comm off.", _ARGUMENTS, frameworks=only("megatron"),
        smallest_change="overlap.tp_comm true -> false",
    ),
    Rule(
        "overlap-unsupported", _tp_overlap, "overlap.tp_comm (async TP) needs training.compile in torchtitan",
        "Set training.compile to true, or overlap.tp_comm off.", "torchtitan config enable_async_tensor_parallel",
        frameworks=only("torchtitan"), when=lambda job: not job.training.compile,
        smallest_change="overlap.tp_comm true -> false",
    ),
    Rule(
        "overlap-unsupported", _tp_overlap, "{framework} cannot overlap tensor-parallel communication",
        "Switch overlap.tp_comm off.", "no such key in its configuration", frameworks=only("megatron-deepspeed", "fsdp"),
        smallest_change="overlap.tp_comm true -> false",
    ),
    Rule(
        "overlap-unsupported", _gather_without_reduce, "overlap.param_gather needs overlap.grad_reduce in megatron",
        "Switch overlap.grad_reduce on, or overlap.param_gather off.", _ARGUMENTS, frameworks=only("megatron"),
        smallest_change="overlap.param_gather true -> false",
    ),
    Rule(
        "offload-unsupported", _any_offload, "nanotron offloads nothing", "Leave offload out.",
        "no such key in its configuration", frameworks=only("nanotron"),
    ),
    Rule(
        "offload-unsupported", _optimizer_offload, "megatron {version} cannot offload the optimizer",
        "Set offload.optimizer_fraction to 0, or use core 0.12.", _ARGUMENTS, frameworks=only("megatron"), until="0.12",
        smallest_change="offload.optimizer_fraction {offload_optimizer_fraction} -> 0",
    ),
    Rule(
        "offload-unsupported", _parameter_offload, "megatron cannot offload parameters",
        "Set offload.parameters to false.", _ARGUMENTS, frameworks=only("megatron"),
        smallest_change="offload.parameters true -> false",
    ),
    Rule(
        "offload-unsupported", _activation_offload_mixed,
        "activation offload excludes recompute ({recompute}) and pipelines (pp {pp}) in megatron",
        "Set offload.activation_layers to 0.", f"{_CORE} (cpu_offloading)", frameworks=only("megatron"),
        smallest_change="offload.activation_layers {offload_activation_layers} -> 0",
    ),
    Rule(
        "offload-unsupported", _parameters_below_three, "offload.parameters needs zero 3, not {zero}",
        "Use zero 3, or keep parameters on the GPU.", "deepspeed/runtime/zero/config.py (offload_param)",
        frameworks=only("deepspeed", "megatron-deepspeed"), smallest_change="zero {zero} -> 3",
    ),
    Rule(
        "offload-unsupported", _half_offloaded, "{framework} offloads parameters and the whole optimizer together or neither",
        "Set optimizer_fraction 1 with parameters true, or leave offload out.",
        "torch FSDP2 CPUOffloadPolicy; torchtitan training.enable_cpu_offload", frameworks=only("torchtitan", "fsdp"),
    ),
)  # fmt: skip
