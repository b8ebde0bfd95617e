"""Which groups of ranks may share one copy of sharded state, where that need not be all replicas.

Megatron calls the copies optimizer instances, TorchTitan and accelerate replicate beside they shard (HSDP), DeepSpeed had MiCS.
"""

from __future__ import annotations

from cost_models.job import Job


def shard_group_stages(job: Job) -> frozenset[int]:
    """ZeRO stages whose state the framework and version can keep to a part of the replicas."""
    facts = job.framework
    return facts.shard_group_stages if job.model.moe is None else facts.expert_shard_group_stages
