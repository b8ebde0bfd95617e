"""How far a tuning is, in the words of its page and of the list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.plan_cells import seconds
from app.report.tuning.words import STATUSES, duration, in_short
from app.service.db.jobs import FINISHED
from app.service.db.tuning_news import TuningState
from app.service.db.tuning_trials import TrialRow
from app.service.db.tunings import TuningRow
from app.service.tunings.documents import waits
from app.service.tunings.knob_trials import knob_trials, plan_trials
from app.service.web.words import when

_ENDED = {
    "separated": "the best is clear", "budget": "its time is spent", "max-trials": "its trials are made",
    "gpu-hours": "its GPU hours are spent", "nothing-left": "every plan was tried", "cancelled": "cancelled", "failed": "failed",
}  # fmt: skip
"""Why a tuning made no further trial, by its reason."""


def listed(tuning: TuningRow, state: TuningState | None) -> dict[str, str]:
    """What the list says of a tuning: why it ended, its trials, and its fastest step.

    Args:
        tuning: the tuning.
        state: how its trials stand; None where it was deleted meanwhile.
    """
    trials = () if state is None else state.trials
    # The example was never run here, so that its trials stand in its document alone.
    measured = [each.step_time_s for each in trials if each.step_time_s is not None]
    reason = None if tuning.stopped is None else json.loads(tuning.stopped)["reason"]
    ended = sum(each.knobs is None and each.status not in ("queued", "running") for each in trials)
    return {
        "why": "" if reason in (None, tuning.status) else _ENDED.get(reason, ""),
        "trials": f"{ended} of {tuning.wanted.limits.max_trials}" if trials else "",
        "best": f"{seconds(min(measured))} s" if measured else "",
    }


def progress_of(tuning: TuningRow, trials: Sequence[TrialRow]) -> dict[str, Any]:
    """State, fastest step, and what is spent of each limit in words, and a row for each trial, the newest first."""
    records = {each.number: json.loads(each.record) for each in trials if each.record is not None}
    measured = [record["step_time_s"] for record in records.values() if record["step_time_s"] is not None]
    limits, wanted = tuning.wanted.limits, int(json.loads(tuning.wanted.asked).get("knobs", 0))
    spent_s = sum(records[each.number]["took_s"] for each in plan_trials(trials) if each.number in records)
    gpu_hours = sum(each.gpu_seconds for each in trials) / 3600.0
    return {
        "state": _state(tuning, trials),
        "best": f"{seconds(min(measured))} s a step" if measured else "none yet",
        "trials": f"{sum(each.record is not None for each in plan_trials(trials))} of {limits.max_trials}",
        "knobs": f"{sum(each.record is not None for each in knob_trials(trials))} of {wanted}" if wanted else "",
        "time": f"{duration(spent_s)} of {duration(limits.budget_s)}",
        "gpu_hours": f"{gpu_hours:.3g} of {limits.gpu_hours:g}",
        "agents": f"{tuning.agents_in_touch}",
        "rows": [_row(each, records.get(each.number)) for each in reversed(trials)],
    }


def _state(tuning: TuningRow, trials: Sequence[TrialRow]) -> str:
    if tuning.status in FINISHED:
        return "It has ended."
    running = [each.number for each in trials if each.status == "running"]
    if running:
        return f"Trial {running[0]} runs." if len(running) == 1 else f"{len(running)} trials run."
    return waits(tuning, trials) or "An agent is expected to ask for the next trial."


def _spelled(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def _row(trial: TrialRow, record: dict[str, Any] | None) -> dict[str, Any]:
    row = json.loads(trial.job)["row"]
    status = trial.status if record is None else record["status"]
    step_time_s = None if record is None else record["step_time_s"]
    return {
        "number": trial.number,
        # The id of a row names the rank of its plan.
        "plan": row["id"].replace("-", " "),
        "strategy": in_short(row["strategy"]),
        "knobs": "" if trial.knobs is None else _spelled(json.loads(trial.knobs)["values"]),
        "state": STATUSES.get(status, status),
        "reason": "" if record is None else record["reason"] or "",
        "expected": f"{seconds(trial.expected_s)} s",
        "measured": "" if step_time_s is None else f"{seconds(step_time_s)} s",
        "again": f"attempt {trial.attempts}" if trial.attempts > 1 else "",
        "begun": None if trial.started_at is None else when(trial.started_at),
    }
