"""How far a search is, from the events that its worker has reported."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from app.plan_cells import seconds
from app.service.db.jobs import JobKey, JobStore
from app.service.db.plans import PlanRow
from app.service.db.turns import Place

_STATES = {"queued": "Waiting for a free worker", "started": "Searching", "progress": "Searching"}
_SOON_S = 1.0
"""Seconds below which no expected wait is told: the page would say "0 s" for as long as it lasts."""


def progress_of(jobs: JobStore, key: JobKey, plan: PlanRow) -> dict[str, Any]:
    """State, strategies evaluated, best step and bound in words, the gap between them, elapsed time, and the last event's number.

    A queued plan's state says how many start before it, and when it is expected to start itself.
    """
    events = jobs.events_after(key, 0)
    last = events[-1] if events else None
    kind = "queued" if last is None else last.type
    # Events that end a job carry no figures; those of the last report still hold.
    figures = next((event for event in reversed(events) if event.evaluated is not None), None)
    best = None if figures is None else figures.best_s
    bound = None if figures is None else figures.bound_s
    # Since the request and not since the start: this is what the visitor has been waiting for.
    elapsed_s = ((plan.finished_at or datetime.now(UTC)) - plan.created_at).total_seconds()
    return {
        "seq": 0 if last is None else last.seq,
        "state": _waiting(jobs.place(key)) if plan.status == "queued" else _STATES.get(kind, "Finished"),
        "evaluated": "none yet" if figures is None else f"{figures.evaluated:,.0f}",
        "best": "none yet" if best is None else f"{seconds(best)} s a step",
        "bound": "not known yet" if bound is None else f"{seconds(bound)} s a step",
        "gap": gap(best, bound),
        "elapsed": _span(elapsed_s),
    }


def _waiting(place: Place | None) -> str:
    if place is None:
        return _STATES["queued"]
    if place.position == 1:
        return f"{_STATES['queued']}: this search is next"
    ahead = place.position - 1
    text = f"{_STATES['queued']}: {ahead} {'search starts' if ahead == 1 else 'searches start'} before this one"
    wait_s = 0.0 if place.start_at is None else (place.start_at - datetime.now(UTC)).total_seconds()
    return text if wait_s < _SOON_S else f"{text}, which is expected to start in {_span(wait_s)}"


def _span(span_s: float) -> str:
    return f"{span_s:.0f} s" if span_s < 120 else f"{span_s // 60:.0f} min {span_s % 60:.0f} s"


def gap(best_s: float | None, bound_s: float | None) -> str:
    """How much faster than the best plan so far another one could still be."""
    if best_s is None or bound_s is None or best_s <= 0:
        return "not known yet"
    return f"at most {max(0.0, 1 - bound_s / best_s):.1%} to gain"
