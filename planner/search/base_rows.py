"""Base rows on their way to being expanded: the rules that concern them alone, and the queue in which they wait for their turn."""

from __future__ import annotations

import numpy as np

from cost_models.job import Job
from cost_models.strategies.strategy import Floats, Ints, Strategies, concatenated
from planner.rules import violations
from planner.rules.optimizers import optimizer_depends_on_stage
from planner.search.bounds import build_bounds
from planner.strategies.space import Space

ROWS_AFTER_STOP, MOST_ROWS_AFTER_STOP = 1 << 11, 1 << 15
"""Base rows that are bounded after a stop to tell how good what is left out could be: at a time, and in all."""

BASE_CODES = frozenset({
    "world-exceeds-gpus", "batch-not-divisible", "heads-not-divisible", "kv-heads-not-divisible", "mlp-not-divisible",
    "sequence-not-divisible", "sequence-parallel-needs-tp", "sequence-parallel-unsupported",
    "tensor-parallel-unsupported", "pipeline-unsupported", "context-parallel-unsupported",
    "context-parallel-needs-flash", "experts-missing", "experts-not-divisible", "expert-mlp-not-divisible",
    "expert-tensor-parallel-unsupported", "moe-needs-sequence-parallel", "precision-unsupported-by-framework",
    "attention-unsupported-by-gpu", "attention-unsupported-by-framework", "cross-entropy-unsupported",
    "optimizer-unsupported",
})  # fmt: skip
"""Rules that read base fields alone, so that a base row that breaks one loses all its expansions; a test holds this."""


def base_codes(job: Job) -> frozenset[str]:
    """Those of `BASE_CODES` that say so of every expansion of a base row in this job.

    Some optimizers run at some ZeRO stages alone, and a base row stands for all stages.
    """
    return BASE_CODES - {"optimizer-unsupported"} if optimizer_depends_on_stage(job) else BASE_CODES


def least_left_s(space: Space, meshes: Ints, *, floors_s: Floats, most_rows: int = MOST_ROWS_AFTER_STOP) -> float:
    """Seconds of a step that nothing of these meshes undercuts, which a search left out before it had bounds of them.

    Their floors are far below their bounds. So that the gap of a stopped search is worth reading, the bounds of those with the least
    floors are made after all, as many as take some hundredths of a second.
    """
    order = np.argsort(floors_s, kind="stable")
    meshes, floors_s = meshes[order], floors_s[order]
    ends = np.cumsum(space.degrees.sizes[meshes])
    least_s, start, rows = np.inf, 0, 0
    while start < len(meshes) and floors_s[start] < least_s and ends[start] <= most_rows:
        stop = max(start + 1, int(np.searchsorted(ends, rows + ROWS_AFTER_STOP, "right")))
        base = space.base(meshes[start:stop])
        base = base.take(violations(space.job, base).only(base_codes(space.job)).legal)
        least_s = min(least_s, float(build_bounds(space, base).step_s.min(initial=np.inf)))
        start, rows = stop, int(ends[stop - 1])
    return float(min(least_s, floors_s[start])) if start < len(meshes) else least_s


class Queue:
    """Base rows that may still win, with lower bounds of their step times."""

    def __init__(self) -> None:
        self._parts: list[tuple[Strategies, Floats]] = []

    def __len__(self) -> int:
        """How many rows wait."""
        return sum(len(rows) for rows, _ in self._parts)

    @property
    def least_s(self) -> float:
        """Seconds of a step that nothing in the queue can undercut; infinite where it is empty."""
        return min((float(bounds_s.min()) for _, bounds_s in self._parts), default=np.inf)

    def add(self, rows: Strategies, bounds_s: Floats) -> None:
        """Lets these rows wait."""
        if len(rows):
            self._parts.append((rows, bounds_s))

    def take(self) -> Strategies | None:
        """All rows that wait; the queue is empty then."""
        parts, self._parts = self._parts, []
        return concatenated([rows for rows, _ in parts]) if parts else None
