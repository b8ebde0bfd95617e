"""The thin front of meshwright: `plan` and `evaluate` for Python programs, and the version.

Nothing heavy is imported before a function is called, and no user needs the names of the packages behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "plan"]


def plan(request: Mapping[str, Any], *, on_progress: Callable[..., None] | None = None) -> dict[str, Any]:
    """The plan response for a plan request, both as the JSON documents of the HTTP interface.

    Args:
        request: `{"model": ..., "cluster": ..., "training": ...}` and optional fields.
        on_progress: called now and then while the search runs.

    Raises:
        cost_models.errors.InvalidInputError: the request breaks a rule; `problems` lists every one.
    """
    from planner.plan import plan as build_plan
    from planner.schemas import PlanRequest

    return build_plan(PlanRequest.model_validate(dict(request)), on_progress=on_progress)


def evaluate(rows: Iterable[str], *, calibration: str | None = None) -> Iterator[dict[str, Any]]:
    """One evaluation per JSON line, in order; a bad line gets the verdict "invalid" with its reasons."""
    from planner.rows import evaluate_rows

    return iter(evaluate_rows(rows, calibration=calibration))
