"""Rules on model states: which ZeRO stages, shard groups and optimizers each framework has, and what they exclude."""

from __future__ import annotations

import numpy as np

from cost_models.frameworks import frameworks_where
from cost_models.frameworks.deepspeed import HPZ_SINCE, MICS_SINCE, MICS_UNTIL
from cost_models.frameworks.fsdp import HYBRID_SHARD_SINCE
from cost_models.frameworks.megatron import (
    EXPERT_INSTANCES_SINCE,
    EXPERTS_LEFT_OUT_SINCE,
    FSDP_INSTANCES_SINCE,
    INSTANCES_SINCE,
)
from cost_models.job import Job
from cost_models.strategies.strategy import Bools, Strategies
from planner.rules.rule import Rule, always, indivisible, one_of, only, version_stated

_ARGUMENTS = "megatron/training/arguments.py"


def _zero(job: Job, s: Strategies) -> Bools:
    return ~one_of(s.zero, job.framework.choices.zero)


def _sharded_gradients(_job: Job, s: Strategies) -> Bools:
    return np.asarray(s.zero >= 2)


def _sharded_gradients_pipelined(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero >= 2) & (s.pp > 1))


def _sharded_but_reduced_once(_job: Job, s: Strategies) -> Bools:
    # From stage 2 on a rank keeps the reduced gradient of its own shard only. Reducing later would need every micro-batch's
    # whole gradient, which stage 2 exists to avoid; DeepSpeed's engine asserts this in no_sync.
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


def _partial_gradients(_job: Job, s: Strategies) -> Bools:
    return np.asarray(_partial(s) & (s.zero >= 2))


def _shards_part_of_context(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero >= 1) & indivisible(s.zero_shard_size, s.cp))


def _instances_of_experts(_job: Job, s: Strategies) -> Bools:
    # Experts have fewer data-parallel ranks than the dense layers (ep has taken some), and these are divided into as many
    # copies of the state.
    instances = np.where(s.zero >= 1, s.dp_cp / s.zero_shard_size, 1.0)
    return np.asarray((instances > 1) & indivisible(s.expert_dp, instances))


def _replicates_whole(_job: Job, s: Strategies) -> Bools:
    # dp_replicate without dp_shard is DistributedDataParallel, which accelerate does not compose with a device mesh of tp or cp.
    whole = (s.zero == 0) | (s.zero_shard_size == s.cp)
    return np.asarray(whole & (s.dp > 1) & ((s.tp > 1) | (s.cp > 1)))


def _hpz(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero_param_shard_size != s.zero_shard_size) & (s.zero >= 1))


def _hpz_over_one(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero_param_shard_size == 1) & (s.zero_shard_size > 1) & (s.zero == 3))


def _hpz_below_three(_job: Job, s: Strategies) -> Bools:
    return np.asarray((s.zero_param_shard_size != s.zero_shard_size) & (s.zero != 3))


def _eight_bit(job: Job) -> bool:
    return job.training.optimizer == "adam-8bit"


STATE_RULES: tuple[Rule, ...] = (
    Rule(
        "zero-unsupported", _zero, "{framework} does not have zero {zero}", "Set zero to one of {zeros}.",
        "torchtitan and FSDP2 shard all three states; nanotron optimizer.zero_stage; DeepSpeed engine",
    ),
    Rule(
        "zero-unsupported", _sharded_gradients, "megatron {version} does not have zero {zero}, which came with Megatron-FSDP in core 0.12",
        "Set zero to 0 or 1, or use core 0.12.", _ARGUMENTS, frameworks=only("megatron"), until="0.12", when=version_stated,
        smallest_change="zero {zero} -> 1",
    ),
    # A pipeline runs several micro-batches before its gradients are complete. DeepSpeed's pipeline engine schedules their
    # reduction itself, once at the end, and asserts a stage below 2.
    Rule(
        "zero-with-pipeline", _sharded_gradients_pipelined, "{framework} cannot combine zero {zero} with a pipeline (pp {pp})",
        "Use zero 0 or 1 with a pipeline, or set pp to 1.", "deepspeed/runtime/pipe/engine.py",
        frameworks=only("deepspeed", "megatron-deepspeed"), smallest_change="zero {zero} -> 1",
    ),
    Rule(
        "zero-unsupported", _sharded_but_reduced_once,
        "deepspeed cannot combine grad_sync 'last' with zero {zero}, which keeps no whole gradients to reduce later",
        "Leave grad_sync out.", "deepspeed/runtime/engine.py (no_sync)", frameworks=only("deepspeed"),
        smallest_change="grad_sync last -> each",
    ),
    Rule(
        "zero-with-tensor-parallel", _zero3_tensor, "deepspeed {version} cannot combine zero 3 with tensor parallelism (tp {tp})",
        "Use zero 2, set tp to 1, or use version 0.19.4.", "deepspeed/runtime/engine.py (_configure_tensor_parallel)",
        frameworks=only("deepspeed"), until="0.19.4", smallest_change="zero 3 -> 2",
    ),
    Rule(
        "zero-shard-size-not-divisible", _shard_size, "zero_shard_size {zero_shard_size} does not divide dp x cp = {dp_cp}",
        "Choose a zero_shard_size that divides dp x cp.", "megatron/core/parallel_state.py; torchtitan dp_replicate x dp_shard",
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-not-divisible", _param_shard_size,
        "zero_param_shard_size {zero_param_shard_size} does not divide zero_shard_size {zero_shard_size}",
        "Choose a zero_param_shard_size that divides zero_shard_size.", "deepspeed/runtime/zero/config.py",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_shards, "{framework} shards over all dp x cp = {dp_cp} ranks, "
        "not over groups of {zero_shard_size}", "Leave zero_shard_size out.", "no such key in its configuration",
        frameworks=frameworks_where(lambda facts: not facts.ever("shard_group_stages")), smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_shards, "megatron {version} has no optimizer instances: it shards over all "
        "dp x cp = {dp_cp} ranks, not over groups of {zero_shard_size}", "Leave zero_shard_size out, or use core 0.10.",
        "megatron/core/parallel_state.py (num_distributed_optimizer_instances)", frameworks=only("megatron"),
        until=INSTANCES_SINCE, when=version_stated, smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_gradients, "Megatron-FSDP (zero {zero}) of core {version} shards over all "
        "dp x cp = {dp_cp} ranks, not over groups of {zero_shard_size}",
        "Leave zero_shard_size out, use zero 1, or use core 0.13.",
        "megatron/core/distributed/custom_fsdp", frameworks=only("megatron"), until=FSDP_INSTANCES_SINCE,
        when=version_stated, smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_gradients, "Megatron-FSDP (zero {zero}) of core {version} cannot keep several "
        "copies of experts: it shards over all dp x cp = {dp_cp} ranks, not over groups of {zero_shard_size}",
        "Leave zero_shard_size out, use zero 1, or use core 0.17.",
        "megatron/core/distributed/fsdp/mcore_fsdp_adapter.py (_init_dist_index)", frameworks=only("megatron"),
        since=EXPERTS_LEFT_OUT_SINCE, until=EXPERT_INSTANCES_SINCE, when=lambda job: job.model.moe is not None,
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_shards, "PyTorch {version} shards over all dp x cp = {dp_cp} ranks, "
        "not over groups of {zero_shard_size}", "Leave zero_shard_size out, or use PyTorch 2.0.",
        "torch/distributed/fsdp/api.py (ShardingStrategy.HYBRID_SHARD)", frameworks=only("fsdp"),
        until=HYBRID_SHARD_SINCE, when=version_stated,
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    # MiCS is a variant of the stage 3 engine (MiCS_Optimizer derives from DeepSpeedZeroOptimizer_Stage3).
    Rule(
        "zero-shard-size-unsupported", _partial_below_three, "deepspeed shards over groups (MiCS) only with zero 3, but zero is {zero}",
        "Use zero 3, or leave zero_shard_size out.", "deepspeed/runtime/zero/mics.py", frameworks=only("deepspeed"),
        until=MICS_UNTIL,
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_shards, "deepspeed {version} shards over all dp x cp = {dp_cp} "
        "ranks, not over groups of {zero_shard_size}, which came with MiCS in 0.9.2",
        "Leave zero_shard_size out, or use version 0.9.2.",
        "deepspeed/runtime/zero/mics.py", frameworks=only("deepspeed"), until=MICS_SINCE, when=version_stated,
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-unsupported", _partial_shards, "deepspeed {version} shards over all dp x cp = {dp_cp} "
        "ranks, not over groups of {zero_shard_size}, since MiCS was removed", "Leave zero_shard_size out.",
        "deepspeed/runtime/config.py (removed keys)", frameworks=only("deepspeed"), since=MICS_UNTIL,
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-not-divisible", _shards_part_of_context,
        "zero_shard_size {zero_shard_size} is not a multiple of cp {cp}, whose ranks always share one copy",
        "Choose a zero_shard_size that is a multiple of cp.", "torchtitan/distributed/parallel_dims.py; accelerate/parallelism_config.py (dp_shard x cp)",
        frameworks=frameworks_where(lambda facts: facts.groups_hold_context), smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    Rule(
        "zero-shard-size-not-divisible", _instances_of_experts,
        "zero_shard_size {zero_shard_size} makes more copies of the state than divide the data-parallel ranks of the experts, "
        "{tp_cp_dp} / (ep {ep} x etp {etp})", "Raise zero_shard_size, or lower ep.",
        "megatron/core/parallel_state.py (partial DistOpt shard factor); torchtitan/distributed/parallel_dims.py (efsdp)",
        frameworks=frameworks_where(lambda facts: bool(facts.choices.dispatchers and facts.expert_shard_group_stages)),
        when=lambda job: job.model.moe is not None and bool(job.framework.choices.dispatchers),
        smallest_change="zero_shard_size {zero_shard_size} -> {dp_cp}",
    ),
    # The check is ParallelismConfig.__post_init__'s: dp_replicate above 1 with dp_shard 1 admits neither tp nor cp.
    Rule(
        "zero-with-tensor-parallel", _replicates_whole,
        "accelerate cannot combine replicas of whole parameters with tensor or context parallelism (tp {tp}, cp {cp})",
        "Use zero 2 or 3 with a zero_shard_size above cp.", "accelerate/parallelism_config.py (__post_init__)",
        frameworks=only("fsdp"), smallest_change="zero {zero} -> 3",
    ),
    Rule(
        "zero-param-shard-size-unsupported", _hpz, "{framework} has no second shard group for parameters",
        "Leave zero_param_shard_size out.", "ZeRO++ hpZ and MiCS are DeepSpeed's",
        frameworks=frameworks_where(lambda facts: not facts.ever("param_shard_group_stages")),
    ),
    Rule(
        "zero-param-shard-size-unsupported", _hpz, "deepspeed {version} has no second shard group for parameters, "
        "which came with hpZ in 0.10", "Leave zero_param_shard_size out, or use version 0.10.", "deepspeed/runtime/zero/config.py (zero_hpz_partition_size)",
        frameworks=only("deepspeed"), until=HPZ_SINCE, when=version_stated,
    ),
    # hpZ keeps a second copy of the parameters within a smaller group, so the parameters must be sharded to begin with.
    Rule(
        "zero-param-shard-size-unsupported", _hpz_below_three, "zero_param_shard_size needs zero 3, but zero is {zero}",
        "Use zero 3, or leave zero_param_shard_size out.", "deepspeed/runtime/zero/config.py (zero_hpz_partition_size)",
        frameworks=only("deepspeed"),
    ),
    # zero_hpz_partition_size is compared with 1: that value means that there is no second copy.
    Rule(
        "zero-param-shard-size-unsupported", _hpz_over_one, "zero_param_shard_size 1 means in {framework} that there is no second shard group",
        "Leave zero_param_shard_size out, or set it to the number of ranks that shall share a copy.",
        "deepspeed/runtime/zero/config.py (zero_hpz_partition_size), partition_parameters.py",
        frameworks=frameworks_where(lambda facts: facts.ever("param_shard_group_stages")),
    ),
    # 8-bit Adam is bitsandbytes', which replaces a PyTorch optimizer; Megatron and nanotron bring optimizers of their own.
    Rule(
        "optimizer-unsupported", always, "{framework} does not have optimizer '{optimizer}'", "Set optimizer to 'adam' or 'sgd'.",
        "megatron/core/optimizer/__init__.py; nanotron optimizer config",
        frameworks=frameworks_where(lambda facts: not facts.choices.eight_bit_adam), when=_eight_bit,
    ),
)  # fmt: skip
