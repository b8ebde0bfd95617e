"""Groups of replicas: the islands of a cluster, or its nodes where groups of replicas train by themselves.

Everything inside a group is priced as if the group were the whole cluster, because no other communication group than that of the
replicas crosses its boundary (`planner.rules.replicas`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from cost_models.job import Job
from cost_models.specs.method import PLAIN
from cost_models.strategies.strategy import Floats, Strategies


def has_groups(job: Job) -> bool:
    """Whether replicas form groups with a boundary of its own kind: islands, or groups that train by themselves."""
    return job.method.is_local or job.cluster.islands is not None


@lru_cache(maxsize=512)
def group_job(job: Job) -> Job:
    """The same job on one island, or on one node where groups are nodes."""
    cluster = job.cluster
    nodes = cluster.num_nodes // cluster.islands.count if cluster.islands is not None else 1
    return replace(job, cluster=replace(cluster, num_nodes=nodes, islands=None), method=PLAIN)


def num_groups(job: Job, strategies: Strategies) -> Floats:
    """Groups that each strategy has: the islands, or the nodes, that it lies on, shape (N,)."""
    cluster = job.cluster
    if cluster.islands is not None:
        return np.where(strategies.world > cluster.island_gpus, float(cluster.islands.count), 1.0)
    return np.maximum(strategies.world / cluster.gpus_per_node, 1.0)


def within_group(job: Job, strategies: Strategies) -> Strategies:
    """What each strategy is inside one of its groups: shards that would cross the boundary end there."""
    count = num_groups(job, strategies)
    ranks = strategies.dp_cp / count
    return replace(
        strategies,
        dp=strategies.dp / count,
        zero_shard_size=np.minimum(strategies.zero_shard_size, ranks),
        zero_param_shard_size=np.minimum(strategies.zero_param_shard_size, ranks),
    )
