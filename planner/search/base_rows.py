"""Base rows on their way to being expanded: the rules that concern them alone, and the queue in which they wait for their turn."""

from __future__ import annotations

import numpy as np

from cost_models.strategies.strategy import Floats, Strategies, concatenated

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
