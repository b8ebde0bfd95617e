"""Which groups of ranks may share one copy of sharded state, where that need not be all replicas.

Megatron calls the copies optimizer instances, torchtitan and accelerate replicate beside they shard (HSDP), DeepSpeed has
MiCS.
"""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.frameworks.training_defaults import precedes
from cost_models.job import Job
from cost_models.specs.training import Framework

INSTANCES_SINCE = "0.10"
"""Megatron core's num_distributed_optimizer_instances: in parallel_state.py of 0.10.0, not of 0.9.0."""
FSDP_INSTANCES_SINCE = "0.13"
"""Its FSDP (zero 2 and 3) heeds them: custom_fsdp/fully_sharded_data_parallel.py of 0.13.1, not of 0.12.1."""
EXPERT_INSTANCES_SINCE = "0.17"
"""From 0.14 on, with a device mesh that had none for experts before: fsdp/mcore_fsdp_adapter.py of 0.16.1 and 0.17.0."""
EXPERTS_LEFT_OUT_SINCE = "0.14"
HYBRID_SHARD_SINCE = "2.0"
"""PyTorch's FSDP: ShardingStrategy.HYBRID_SHARD, with process groups of any size."""
MICS_SINCE = "0.9.2"
"""DeepSpeed's MiCS: runtime/zero/mics.py is in the source package of 0.9.2, not in that of 0.9.1."""
MICS_UNTIL = "0.19.7"
"""deepspeed/runtime/config.py lists its keys as removed from then on."""
_STAGES: Mapping[Framework, frozenset[int]] = {
    "megatron": frozenset({1, 2, 3}),
    "torchtitan": frozenset({1, 2, 3}),
    "fsdp": frozenset({1, 2, 3}),
    "deepspeed": frozenset({3}),
}


def shard_group_stages(job: Job) -> frozenset[int]:
    """ZeRO stages whose state the framework and version can keep to a part of the replicas."""
    training = job.training
    stages = _STAGES.get(training.framework, frozenset())
    version = training.framework_version
    if training.framework == "megatron":
        experts = job.model.moe is not None and not precedes(version, EXPERTS_LEFT_OUT_SINCE)
        whole_since = EXPERT_INSTANCES_SINCE if experts else FSDP_INSTANCES_SINCE
        if precedes(version, whole_since):
            stages = frozenset() if precedes(version, INSTANCES_SINCE) else stages & {1}
    elif training.framework == "fsdp" and precedes(version, HYBRID_SHARD_SINCE):
        stages = frozenset()
    elif training.framework == "deepspeed":
        has_mics = precedes(version, MICS_UNTIL) and not precedes(version, MICS_SINCE)
        stages = stages if has_mics else frozenset()
    return stages
