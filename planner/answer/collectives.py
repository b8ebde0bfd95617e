"""What an evaluation says of its groups' collectives: `provenance.collectives` of the contract, as plain data."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np

from cost_models.hardware.call_parts import call_parts
from cost_models.hardware.placement import placed_together
from cost_models.job import PooledJob
from cost_models.operations import Op
from cost_models.step.group_calls import GroupCall, group_calls
from cost_models.strategies.strategy import Strategies
from cost_models.terms import Tier

Document = dict[str, Any]
_TIERS = tuple(tier.label for tier in Tier)


def collectives_of(pooled: PooledJob, strategies: Strategies) -> list[list[Document]] | None:
    """The contract's `provenance.collectives` of every strategy; None on pools, where a group's ranks may lie on different links."""
    if pooled.cluster.lists_pools:
        return None
    job, count = pooled.jobs[0], len(strategies)
    # Operations differ in their tables and formulas; within one, all groups can be priced together.
    by_op: dict[Op, list[tuple[int, GroupCall]]] = {}
    for turn, call in enumerate(group_calls(job, strategies)):
        by_op.setdefault(call.op, []).append((turn, call))
    found: list[list[tuple[int, Document]]] = [[] for _ in range(count)]
    for op, turns_and_calls in by_op.items():
        calls = [call for _, call in turns_and_calls]
        # One call of the models for all groups: a single row would wait for each of them longer than for its own numbers.
        size = np.concatenate([call.size_bytes for call in calls])
        placement = placed_together([call.placement for call in calls])
        parts = call_parts(op, size, placement=placement, links=job.calibration.links)
        names = [(turn, call.group) for turn, call in turns_and_calls for _ in range(len(call.rows))]
        columns = (
            np.concatenate([call.rows for call in calls]), size, placement.ranks, placement.islands, parts.latency_s,
            parts.bandwidth_s, parts.tier,
        )  # fmt: skip
        numbers = zip(*map(np.ndarray.tolist, columns), strict=True)
        words = zip(names, parts.algorithm, parts.protocol, strict=True)
        for ((turn, group), algorithm, protocol), (row, size_bytes, ranks, nodes, latency_s, bandwidth_s, tier) in zip(
            words, numbers, strict=True
        ):
            told = {
                "group": group,
                "op": op,
                "bytes": size_bytes,
                "num_ranks": int(ranks),
                "num_nodes": int(nodes),
                "algorithm": algorithm,
                "protocol": protocol,
                "latency_s": latency_s,
                "bandwidth_s": bandwidth_s,
                "tier": _TIERS[tier],
            }
            found[row].append((turn, told))
    # Calls come group by group, whichever operations the other strategies of the batch bring along.
    return [[told for _, told in sorted(each, key=itemgetter(0))] for each in found]
