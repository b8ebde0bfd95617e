"""Which groups of ranks may share one copy of the sharded state, where that need not be all replicas.

Megatron calls the copies optimizer instances, TorchTitan and accelerate call the scheme hybrid sharding (HSDP), and DeepSpeed
had MiCS. DeepSpeed's hpZ leaves the state with all replicas and keeps a second copy of the parameters alone in smaller groups.
"""

from __future__ import annotations

from collections.abc import Collection

from cost_models.job import Job
from planner.strategies.parts import Part, Parts


def shard_group_stages(job: Job) -> frozenset[int]:
    """The ZeRO stages at which the job's framework and version can shard the state over a part of the replicas."""
    facts = job.framework
    return facts.shard_group_stages if job.model.moe is None else facts.expert_shard_group_stages


def searched_stages(
    job: Job, *, zeros: Collection[int], given: Collection[str], without: Parts
) -> tuple[frozenset[int], frozenset[int]]:
    """Those of these stages at which a search tries groups that share the state, and groups that share a second copy of the
    parameters; `given` are the fields whose values the request gives.
    """
    shards = copies = frozenset[int]()
    if "zero_shard_size" not in given and Part.SHARD_SIZES not in without:
        shards = shard_group_stages(job).intersection(zeros)
    if not {"zero_shard_size", "zero_param_shard_size"}.intersection(given) and Part.SECOND_COPIES not in without:
        copies = job.framework.param_shard_group_stages.intersection(zeros)
    assert not (shards and copies) or shards == copies  # every searched stage has the same groups
    return shards, copies
