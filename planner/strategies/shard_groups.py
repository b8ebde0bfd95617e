"""Which groups of ranks may share one copy of the sharded state, where that need not be all replicas.

Megatron calls the copies optimizer instances, TorchTitan and accelerate call the scheme hybrid sharding (HSDP), and DeepSpeed
had MiCS.
"""

from __future__ import annotations

from cost_models.job import Job


def shard_group_stages(job: Job) -> frozenset[int]:
    """The ZeRO stages at which the job's framework and version can shard the state over a part of the replicas."""
    facts = job.framework
    return facts.shard_group_stages if job.model.moe is None else facts.expert_shard_group_stages
