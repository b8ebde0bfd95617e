"""The mesh of a plan as a document: its groups of ranks, the nodes and links that these use, and the stages on the nodes.

The document is as small for 100,000 GPUs as for 8: groups are told by their first one, their size and their stride, and equal nodes
are told once with their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from cost_models.hardware.bus import bus_factor
from cost_models.hardware.groups import groups
from cost_models.hardware.placement import Placement
from cost_models.job import Job, PooledJob
from cost_models.operations import Op
from cost_models.strategies.strategy import Strategies
from cost_models.terms import Tier
from planner.mesh.rank_groups import Ints, RankGroups, device_mesh, rank_groups
from planner.strategies.told import strategy_dict

Document = dict[str, Any]
MESSAGE_BYTES = 2.0**28
"""The message whose bus bandwidth is told, 256 MiB: large enough that a link's bandwidth decides and not its latency."""


def mesh_document(pooled: PooledJob, strategies: Strategies) -> Document:
    """The mesh of one strategy.

    Args:
        pooled: the job.
        strategies: a batch of one that keeps every stage.

    Returns:
        `world` (ranks), `stage_ranks` (ranks of a stage), `device_mesh` (axes and sizes, outermost first, where the framework builds one, else
        null), `dimensions`, `nodes` and `idle_gpus`. A dimension has `name, size, stride, count`, and `links`: one entry, or one for
        each pool that its groups lie on, as `pool, count` (of the groups there)`, first_rank` (of the first of them)`, link` ("none",
        "fast", "pcie", "network")`, interconnect` (the kind of fast link)`, reach` (of PCIe: "switch", "socket", "sockets")`,
        nodes [fewest, most]` that a group spans`, members_per_node [fewest, most],
        groups_per_node` (groups with members on one node, at most), `op, bus_bytes_per_s, tier` (of one large call; null where a group is
        one rank). `nodes` are runs of equal nodes in the order of the ranks: `first_node, count, first_rank, pool, gpus, stages` (the
        stage of each GPU of its first node, -1 where idle).
    """
    strategy = strategy_dict(strategies, 0)
    job = pooled.jobs[0]
    world = int(strategies.world[0])
    stage_ranks = world // int(strategy["pp"])
    runs, node_of = _nodes(pooled, strategy, world=world, stage_ranks=stage_ranks)
    kinds = rank_groups(strategy, has_experts=job.model.moe is not None)
    return {
        "world": world,
        "stage_ranks": stage_ranks,
        "device_mesh": device_mesh(strategy) if job.framework.wraps_layers else None,
        "dimensions": [
            {
                "name": kind.name,
                "size": kind.size,
                "stride": kind.stride,
                "count": kind.count,
                "links": _links(kind, pooled, strategies, strategy, node_of),
            }
            for kind in kinds.values()
        ],
        "nodes": runs,
        "idle_gpus": pooled.cluster.num_gpus - world,
    }


def _nodes(
    pooled: PooledJob, strategy: Mapping[str, Any], *, world: int, stage_ranks: int
) -> tuple[list[Document], Ints]:
    """Runs of equal nodes, and the node of every rank, shape (world,)."""
    runs: list[Document] = []
    node_of = np.zeros(world, np.int64)
    rank, node = 0, 0
    for pool, stages in groupby(_pool_of_stages(pooled, strategy)):
        ranks = stage_ranks * len(list(stages))
        # A pool starts on a node of its own, since its nodes are of another kind.
        per_node = pooled.jobs[pool].cluster.gpus_per_node
        count = -(-ranks // per_node)
        node_of[rank : rank + ranks] = node + np.arange(ranks) // per_node
        # Only the last node of a pool can have GPUs that no stage uses.
        stage_of = np.full(count * per_node, -1)
        stage_of[:ranks] = (rank + np.arange(ranks)) // stage_ranks
        by_node = stage_of.reshape(count, per_node)
        starts = np.flatnonzero(np.r_[True, (by_node[1:] != by_node[:-1]).any(axis=1)])
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), count], strict=True):
            runs.append(
                {
                    "first_node": node + start,
                    "count": end - start,
                    "first_rank": rank + start * per_node,
                    "pool": pooled.names[pool] if pooled.cluster.lists_pools else None,
                    "gpus": per_node,
                    "stages": by_node[start].tolist(),
                }
            )
        rank, node = rank + ranks, node + count
    return runs, node_of


def _pool_of_stages(pooled: PooledJob, strategy: Mapping[str, Any]) -> list[int]:
    named: Sequence[str] = strategy.get("pool_per_stage") or [pooled.names[0]] * int(strategy["pp"])
    return [pooled.names.index(name) for name in named]


def _links(
    kind: RankGroups, pooled: PooledJob, strategies: Strategies, strategy: Mapping[str, Any], node_of: Ints
) -> list[Document]:
    """What the groups of a kind run over, on each pool that they lie on; pipelines cross the pools and are told once."""
    members = kind.members()
    nodes = node_of[members]
    pools = _pool_of_stages(pooled, strategy)
    stage_ranks = kind.size * kind.count // len(pools)
    # Every kind but pipelines lies inside one stage, so that its first member tells the pool.
    first_stage = members[:, 0] // stage_ranks
    found = []
    for pool in [pools[0]] if kind.name == "pp" else dict.fromkeys(pools):
        mine = np.ones(kind.count, np.bool_)
        if kind.name != "pp":
            mine = np.isin(first_stage, [stage for stage, its in enumerate(pools) if its == pool])
        apart = len(set(pools)) > 1 and kind.name == "pp"
        ends = list(dict.fromkeys(pools)) if apart else [pool]
        found.append(
            {
                "pool": pooled.names[pool] if pooled.cluster.lists_pools and not apart else None,
                "count": int(mine.sum()),
                "first_rank": int(members[mine][0, 0]),
                **_spans(nodes[mine]),
                **_slowest([_link(kind, pooled.jobs[each], strategies, strategy, over_network=apart) for each in ends]),
            }
        )
    return found


def _spans(nodes: Ints) -> Document:
    """How groups lie on nodes; `nodes` holds the node of every member, shape (groups, members), rising along a group."""
    begins = np.concatenate([np.ones((len(nodes), 1), np.bool_), nodes[:, 1:] != nodes[:, :-1]], axis=1)
    spanned = begins.sum(axis=1)
    # Members of a group on one node follow each other, so that the distances between beginnings are their numbers.
    flat = np.flatnonzero(begins.ravel())
    members = np.diff(np.r_[flat, begins.size])
    # One beginning is one group on one node: counted by node, they are the groups that share its NICs.
    sharing = np.bincount(nodes.ravel()[flat] - int(nodes.min()))
    return {
        "nodes": [int(spanned.min()), int(spanned.max())],
        "members_per_node": [int(members.min()), int(members.max())],
        "groups_per_node": int(sharing.max()),
    }


def _link(
    kind: RankGroups, job: Job, strategies: Strategies, strategy: Mapping[str, Any], *, over_network: bool
) -> Document:
    # Prices come from the placements that the plan was priced with, and not from this document's own reading of the nodes.
    placed: Placement = getattr(groups(strategies, job.cluster), kind.name)
    if over_network:
        placed = placed.over_network()
    crosses_domains, crosses_islands = float(placed.domains[0]) > 1, float(placed.islands[0]) > 1
    link = "none" if kind.size == 1 else "network" if crosses_islands else "fast"
    if link == "fast" and (crosses_domains or job.cluster.link_kind == "pcie"):
        link = "pcie"
    reach = None
    if link == "pcie":
        islands = float(placed.islands[0])
        reach = "sockets" if placed.sockets[0] > islands else "socket" if placed.switches[0] > islands else "switch"
    bandwidth: Document = {"op": None, "bus_bytes_per_s": None, "tier": None}
    if kind.size > 1:
        op = _operation(kind.name, strategy)
        priced = job.calibration.collective_s(op, MESSAGE_BYTES, placement=placed)
        moved = float(bus_factor(op, np.array([float(kind.size)]))[0]) * MESSAGE_BYTES
        bandwidth = {
            "op": op,
            "bus_bytes_per_s": moved / float(priced.seconds[0]),
            "tier": Tier(int(priced.tier[0])).label,
        }
    return {"link": link, "interconnect": job.cluster.link_kind, "reach": reach, **bandwidth}


def _slowest(links: Sequence[Document]) -> Document:
    """Of the ends of a hop between pools the slower one, at whose pace it goes."""
    return min(links, key=lambda link: link["bus_bytes_per_s"] or 0.0)


def _operation(name: str, strategy: Mapping[str, Any]) -> Op:
    """The operation that moves most of a group's bytes."""
    exchanged: dict[str, Op] = {
        "p2p": "send_recv",
        "a2a": "all_to_all",
        "allgather": "all_gather",
        "a2a+p2p": "all_to_all",
    }
    if name == "tp":
        return "all_gather" if strategy["sequence_parallel"] else "all_reduce"
    if name == "cp":
        return exchanged.get(strategy["cp_comm"], "send_recv")
    if name == "ep":
        return "all_gather" if strategy["moe_dispatcher"] == "allgather" else "all_to_all"
    if name == "pp":
        return "send_recv"
    if name in ("zero_replica", "expert_replica") or not strategy["zero"]:
        return "all_gather" if name == "etp" else "all_reduce"
    return "all_gather" if name in ("etp", "param_shard") else "reduce_scatter"
