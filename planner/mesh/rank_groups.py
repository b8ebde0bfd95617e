"""The groups of ranks that a strategy makes, as patterns: every group of a kind is a start, a size and a stride.

Dense parts number their ranks tp-cp-dp-pp from the fastest-varying axis outward; expert layers regroup the same tp*cp*dp ranks of
a stage as etp-ep-edp. Source: `cost_models/hardware/groups.py`; Megatron Core's `RankGenerator` with the order tp-cp-ep-dp-pp and
PyTorch's DeviceMesh with the axes pp, dp_replicate, dp_shard, cp, tp number alike, which tests hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankGroups:
    """All groups of one kind, none of which shares a rank with another."""

    name: str
    size: int
    """Ranks of a group."""
    stride: int
    """Distance in ranks between neighbours of a group."""
    count: int
    """Number of groups."""

    def group_of(self, rank: int) -> list[int]:
        """The members of the group that holds a rank, in the group's own order."""
        start = rank - (rank // self.stride) % self.size * self.stride
        return [start + place * self.stride for place in range(self.size)]

    def members(self) -> Ints:
        """Every group, in the order of the first ranks, shape (count, size)."""
        number = np.arange(self.count)
        start = number // self.stride * (self.size * self.stride) + number % self.stride
        return start[:, None] + np.arange(self.size) * self.stride


def rank_groups(strategy: Mapping[str, Any], *, has_experts: bool) -> dict[str, RankGroups]:
    """The groups of a strategy by name: `tp, cp, dp, pp` always, the others where they are of their own.

    `dp_cp` are the ranks that hold the same dense parameters, `zero_shard` those that share one copy of the sharded state and
    `zero_replica` those that hold the same shard; `param_shard` share the parameters of forward and backward (hpZ, MiCS). `etp`, `ep`
    and `edp` are those of expert layers: inside one expert, over the experts, and over copies of the same experts; `expert_shard` and
    `expert_replica` cut the last as the state is sharded.

    Args:
        strategy: in the contract's names, with every field filled in.
        has_experts: whether the model has expert layers.
    """
    tp, cp, dp, pp = (int(strategy[name]) for name in ("tp", "cp", "dp", "pp"))
    world = tp * cp * dp * pp

    def kind(name: str, size: int, stride: int) -> RankGroups:
        return RankGroups(name, size, stride, world // size)

    # Each stride is the product of the degrees that vary faster.
    found = [kind("tp", tp, 1), kind("cp", cp, tp), kind("dp", dp, tp * cp), kind("pp", pp, tp * cp * dp)]
    # Gradients are reduced over replicas and context-parallel ranks together, so these are groups of their own only where cp is used.
    if cp > 1:
        found.append(kind("dp_cp", dp * cp, tp))
    shard = int(strategy.get("zero_shard_size") or dp * cp)
    # Without ZeRO every rank keeps all of its state, whatever the size of a shard would be.
    sharded = int(strategy["zero"]) > 0 and shard > 1
    if sharded:
        found.append(kind("zero_shard", shard, tp))
        if shard < dp * cp:
            found.append(kind("zero_replica", dp * cp // shard, tp * shard))
        parameters = int(strategy.get("zero_param_shard_size") or shard)
        if parameters != shard:
            found.append(kind("param_shard", parameters, tp))
    if has_experts:
        etp, ep = int(strategy.get("etp") or 1), int(strategy.get("ep") or 1)
        # Expert layers use the ranks of a stage anew, so that context-parallel ranks hold other experts too.
        edp = tp * cp * dp // (ep * etp)
        found += [kind("etp", etp, 1), kind("ep", ep, etp), kind("edp", edp, etp * ep)]
        copies = dp * cp // shard
        # The experts' state is cut into as many copies as the rest of the model's.
        if sharded and 1 < copies <= edp and edp % copies == 0 and edp > copies:
            found.append(kind("expert_shard", edp // copies, etp * ep))
            found.append(kind("expert_replica", copies, etp * ep * (edp // copies)))
    return {each.name: each for each in found}


def device_mesh(strategy: Mapping[str, Any]) -> dict[str, int] | None:
    """Axes and sizes of PyTorch's DeviceMesh for a strategy, outermost first; None where shards are not whole context-parallel groups.

    Source: torchtitan's `distributed/parallel_dims.py`.
    """
    cp, dp = int(strategy["cp"]), int(strategy["dp"])
    zero, shard = int(strategy["zero"]), int(strategy.get("zero_shard_size") or dp * cp)
    # A mesh without sharding has dp_shard 1: then a shard is what one context-parallel group holds.
    inside = shard if zero else cp
    if inside % cp or (dp * cp) % inside:
        return None
    return {
        "pp": int(strategy["pp"]),
        "dp_replicate": dp * cp // inside,
        "dp_shard": inside // cp,
        "cp": cp,
        "tp": int(strategy["tp"]),
    }
