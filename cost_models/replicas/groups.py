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
    # torch's post_localSGD_hook averages gradients over the ranks of a machine unless it is given another subgroup.
    nodes = cluster.num_nodes // cluster.islands.count if cluster.islands is not None else 1
    return replace(job, cluster=replace(cluster, num_nodes=nodes, islands=None), method=PLAIN)


def groups_of_world(job: Job, world: Floats | float) -> Floats:
    """Groups of replicas on so many GPUs: the islands, or the nodes, that they lie on, in the shape of `world`."""
    cluster = job.cluster
    if cluster.islands is not None:
        # Ranks fill islands one after the other, so that what needs no more than one lies in one.
        return np.where(np.asarray(world) > cluster.island_gpus, float(cluster.islands.count), 1.0)
    return np.maximum(np.asarray(world) / cluster.gpus_per_node, 1.0)


def sharing_ranks(job: Job, *, dp_cp: int, split: int) -> int:
    """Ranks that can share one copy of sharded state: all that hold the same parameters, or those of one group that trains by itself.

    Args:
        job: its method says which it is.
        dp_cp: ranks that hold the same parameters.
        split: ranks that hold different ones, tp * pp.
    """
    if not job.method.is_local:
        return dp_cp
    # Degrees that leave no whole number for each group are refused later, by a rule that names them.
    return max(1, int(dp_cp / float(groups_of_world(job, dp_cp * split))))


def num_groups(job: Job, strategies: Strategies) -> Floats:
    """Groups that each strategy has, shape (N,)."""
    return groups_of_world(job, strategies.world)


def within_group_shards(job: Job, strategies: Strategies) -> Strategies:
    """The same strategies with shards that end at the boundary of a group, as they do where groups train by themselves."""
    # Larger groups of shards than this would share state between groups that do not have the same.
    ranks = strategies.dp_cp / num_groups(job, strategies)
    return replace(
        strategies,
        zero_shard_size=np.minimum(strategies.zero_shard_size, ranks),
        zero_param_shard_size=np.minimum(strategies.zero_param_shard_size, ranks),
    )


def within_group(job: Job, strategies: Strategies) -> Strategies:
    """What each strategy is inside one of its groups."""
    return replace(within_group_shards(job, strategies), dp=strategies.dp / num_groups(job, strategies))
