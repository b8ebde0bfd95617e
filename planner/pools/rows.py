"""One evaluate row on a mixed cluster."""

from __future__ import annotations

from typing import Any

from cost_models.evaluate import DEFAULT_HEADROOM_FRACTION
from cost_models.mixed import MixedJob
from planner.evaluation_dict import invalid_dict
from planner.pools.evaluation import mixed_evaluation
from planner.pools.jobs import assumed_of
from planner.pools.strategy import resolve_on_pools
from planner.schemas.strategy import StrategyInput


def evaluate_on_pools(mixed: MixedJob, given: StrategyInput, *, row_id: str | int | None) -> dict[str, Any]:
    """The evaluation of a strategy on pools. Facts that it leaves open take their defaults, also in the memory range."""
    resolved = resolve_on_pools(mixed, given)
    assumed = assumed_of(mixed, resolved.assumed)
    if resolved.row is None:
        return invalid_dict(resolved.problems, row_id=row_id, assumed=assumed)
    return mixed_evaluation(
        mixed, resolved.row, headroom_fraction=DEFAULT_HEADROOM_FRACTION, row_id=row_id, assumed=assumed
    )
