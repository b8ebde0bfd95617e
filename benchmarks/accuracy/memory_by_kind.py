"""Memory errors that a single peak per row does not show: readings of reserved and device memory, and those of every rank.

Errors are predicted / measured - 1. Ranks are numbered with the pipeline stage outermost, as Megatron and torchtitan do:
rank r of n lies on stage r * pp // n.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from benchmarks.accuracy.measured_rows import Floats, Scored, positive
from cost_models.units import GIB

Kind = Literal["reserved", "device"]


def kind_errors(scored: Scored, kind: Kind) -> Floats:
    """Errors of all readings of this kind: `reserved_gib` or `device_gib`, or the peak if that is of this kind."""
    found = []
    for row, answer in _answered(scored):
        measured = row["measured"]
        peak = measured.get("peak_memory_gib") if measured.get("memory_kind") == kind else None
        reading = positive(measured.get(f"{kind}_gib", peak))
        found.append(positive(answer["memory"][f"peak_{kind}_bytes"]) / (reading * GIB) - 1.0)
    errors = np.array(found, np.float64)
    return errors[~np.isnan(errors)]


def rank_errors(scored: Scored) -> Floats:
    """Errors of the allocated peak of every rank that was read, over all rows."""
    found = []
    for row, answer in _answered(scored):
        stages, ranks = answer["memory"]["stages"], _per_rank(row)
        for rank, reading in enumerate(ranks):
            predicted = stages[rank * len(stages) // len(ranks)]["peak_allocated_bytes"]
            found.append(predicted / (reading * GIB) - 1.0)
    return np.array(found, np.float64)


def emptiest_rank_errors(scored: Scored) -> Floats:
    """Errors of the allocated peak of the emptiest rank, for sources that print it."""
    found = [
        min(stage["peak_allocated_bytes"] for stage in answer["memory"]["stages"]) / (reading * GIB) - 1.0
        for row, answer in _answered(scored)
        if (reading := positive(row["measured"].get("min_rank_allocated_gib"))) > 0
    ]
    return np.array(found, np.float64)


def _answered(scored: Scored) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    # A run that ran out of memory has no peak: what it allocated until then is where it stopped.
    kept = scored.take(scored.answered & ~scored.out_of_memory)
    yield from zip(kept.rows, kept.answers, strict=True)


def _per_rank(row: Mapping[str, Any]) -> list[float]:
    return (row["measured"].get("per_rank") or {}).get("allocated_gib") or []
