"""Parts of the search that can be left out to see what each is worth: by `benchmarks/ablation.py` and by tests, never by a request.

Without an axis there are fewer strategies, so that the best plan may be a slower one. A bound and a screen change no plan: without
them more strategies are priced.
"""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """What can be left out."""

    SCHEDULES = "schedules"
    """Pipelines run 1F1B, interleaved where there are virtual stages."""
    DISPATCHERS = "dispatchers"
    """Tokens reach their experts by the framework's default alone."""
    EXPERT_OVERLAP = "experts' overlap"
    TP_OVERLAP = "tensor-parallel overlap"
    MODULE_SETS = "recompute modules"
    """Selective recomputation repeats the framework's default alone."""
    SHARD_SIZES = "shard sizes"
    """All replicas share one copy of the sharded state."""
    SECOND_COPIES = "second copies"
    """Parameters are sharded like the other state."""
    UNEVEN_VPP = "vpp that does not divide"
    """Pipelines have virtual stages only where the stages divide the layers."""
    OFFLOAD = "offload fallback"
    MESH_FLOORS = "floors of meshes"
    ROW_BOUNDS = "bounds of base rows"
    """And with them the order in which these are searched."""
    PAIR_BOUNDS = "bounds of expansions"
    GROUP_BOUNDS = "bounds of shard groups"
    RISING_WORK = "rising recomputation"
    """That recomputing more layers is never faster."""
    MEMORY_SCREEN = "memory screen"
    """That nothing fits of a base row whose leanest choices do not."""


Parts = frozenset[Part]
AXES: Parts = frozenset({
    Part.SCHEDULES, Part.DISPATCHERS, Part.EXPERT_OVERLAP, Part.TP_OVERLAP, Part.MODULE_SETS, Part.SHARD_SIZES,
    Part.SECOND_COPIES, Part.UNEVEN_VPP, Part.OFFLOAD,
})  # fmt: skip
BOUNDS: Parts = frozenset({
    Part.MESH_FLOORS, Part.ROW_BOUNDS, Part.PAIR_BOUNDS, Part.GROUP_BOUNDS, Part.RISING_WORK, Part.MEMORY_SCREEN,
})  # fmt: skip
