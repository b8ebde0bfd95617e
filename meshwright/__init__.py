"""The thin front of meshwright: `plan`, `evaluate` and the tuning of knobs for Python programs, and the version.

Nothing heavy is imported before a function is called, and no user needs the names of the packages behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.knobs.tuning import KnobTuning
    from planner.search.progress import Progress

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "plan", "resume_knobs", "start_knobs"]


def plan(
    request: Mapping[str, Any],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """The plan response for a plan request, both as the JSON documents of the HTTP interface.

    Args:
        request: `{"model": ..., "cluster": ..., "training": ...}` and optional fields; `cluster.calibration` may be a path.
        on_progress: called now and then while the search runs.
        should_stop: asked now and then; true ends the search with the best plans so far.

    Raises:
        cost_models.errors.InvalidInputError: the request breaks a rule; `problems` lists every one.
    """
    from planner.plan import plan as build_plan

    return build_plan(request, allow_files=True, on_progress=on_progress, should_stop=should_stop)


def evaluate(rows: Iterable[str | Mapping[str, Any]], *, calibration: str | None = None) -> Iterator[dict[str, Any]]:
    """One evaluation per row (a JSON text or its document), in order; a bad row gets the verdict "invalid" with its reasons.

    Args:
        rows: `{"id": ..., "model": ..., "cluster": ..., "training": ..., "strategy": ...}`.
        calibration: name or file that replaces every row's own.
    """
    from planner.rows import evaluate_rows

    return evaluate_rows(rows, calibration=calibration, allow_files=True)


def start_knobs(
    response: Mapping[str, Any], *, storage: str, plan: int = 1, name: str | None = None, seed: int = 0
) -> KnobTuning:
    """A tuning of the run-time knobs of one plan: `ask` for values, run them, `tell` the seconds, see the `best`.

    Args:
        response: what `plan` returned.
        storage: SQLAlchemy URL that keeps it, such as "sqlite:///knobs.db".
        plan: rank of the plan.
        name: by which it is resumed; by default from the request and the rank.
        seed: equal seeds and equal times ask for equal values.
    """
    from app.knobs.tuning import KnobTuning

    return KnobTuning.start(response, storage=storage, plan=plan, name=name, seed=seed)


def resume_knobs(storage: str, *, name: str | None = None) -> KnobTuning:
    """The stored tuning of that name, or the only one that a storage has."""
    from app.knobs.tuning import KnobTuning

    return KnobTuning.resume(storage, name=name)
