"""The document of a tuning, from what is stored of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from app.service.db.jobs import FINISHED
from app.service.db.tuning_news import TuningState
from app.service.db.tuning_trials import TrialRow
from app.service.db.tunings import TuningRow
from app.service.timestamps import rfc3339
from app.service.tunings.knob_trials import KnobPhase, gpu_hours, knob_trials, plan_trials
from app.service.tunings.trial_jobs import Subject
from app.tuning.document import tuning_document
from app.tuning.learnt import corrections_of
from app.tuning.loop import refusals_said
from planner.request.checked_request import PRODUCT_VERSION
from planner.search.standing import Limits, Outcome, Running, Standing, Stop, Told

Document = dict[str, Any]


def standing_of(tuning: TuningRow, trials: Sequence[TrialRow]) -> Standing:
    """How a tuning stands whose plan is there."""
    assert tuning.answer is not None
    trials = plan_trials(trials)
    ended = [each for each in trials if each.record is not None]
    told = [
        Told(each.number, each.candidate, each.expected_s, outcome_of(each))
        for each in sorted(ended, key=lambda each: (each.finished_at, each.number))
    ]
    # Of a tuning that has ended nothing goes on, whatever its agents have not heard yet.
    is_over = tuning.status in FINISHED
    running = [] if is_over else [each for each in trials if each.record is None]
    stopped = None if tuning.stopped is None else Stop(**json.loads(tuning.stopped))
    return Standing(
        candidates=Subject.of_text(tuning.answer).candidates(),
        told=told,
        running=[Running(each.number, each.candidate, str(each.agent_id or "")) for each in running],
        limits=limits_of(tuning),
        seed=int(json.loads(tuning.wanted.asked)["seed"]),
        by_hand=stopped,
    )


def limits_of(tuning: TuningRow) -> Limits:
    """What the tuning may spend."""
    limits = tuning.wanted.limits
    return Limits(budget_s=limits.budget_s, max_trials=limits.max_trials, gpu_hours=limits.gpu_hours)


def outcome_of(trial: TrialRow) -> Outcome:
    """How a trial ended, with what all its attempts took."""
    assert trial.record is not None
    record = json.loads(trial.record)
    return Outcome(record["status"], record["step_time_s"], record["took_s"], trial.gpu_seconds, record)


def document_of(tuning: TuningRow, trials: Sequence[TrialRow]) -> Document:
    """The document of a tuning, a `TuningDocument`: the one that was kept when it ended, or the one of this moment."""
    # What may change after the end: an agent may come or go, and the state is the row's.
    own = {
        "status": tuning.status,
        "started_at": _moment(tuning.started_at),
        "finished_at": _moment(tuning.finished_at),
        "plan_id": tuning.wanted.plan_id,
        "agents_in_touch": tuning.agents_in_touch,
        "waits": waits(tuning, trials),
        "error": None if tuning.error is None else json.loads(tuning.error),
    }
    if tuning.document is not None:
        kept: Document = json.loads(tuning.document)
        return kept | own
    if tuning.answer is None:
        return _without_plan(tuning) | own
    subject, standing = Subject.of_text(tuning.answer), standing_of(tuning, trials)
    phase = KnobPhase.of(tuning, subject, standing, trials)
    refused = None if phase is None or standing.stop is None else phase.refusal()
    document = tuning_document(
        subject.response,
        standing,
        tuning_id=tuning.id,
        status=tuning.status,
        created_at=rfc3339(tuning.created_at),
        backend=tuning.wanted.backend,
        corrections=corrections_of(subject.response, standing),
        knobs=phase.document() if phase is not None and phase.trials else None,
        warnings=[
            *refusals_said({int(rank): why for rank, why in subject.refused.items()}),
            *([] if refused is None else [f"The knobs were not tuned: {refused.rstrip('.')}."]),
        ],
    )
    # The time of knobs is paid for like any other.
    used = document["used"] | {"gpu_hours": document["used"]["gpu_hours"] + gpu_hours(knob_trials(trials))}
    return document | own | {"used": used, "trials": _trials(document, subject, standing.told, plan_trials(trials))}


def waits(tuning: TuningRow, trials: Sequence[TrialRow]) -> str | None:
    """Why no trial of a tuning runs just now, in a sentence; None where one does, where one can begin, and after the end."""
    if tuning.status in FINISHED or any(each.status == "running" for each in trials):
        return None
    wanted = tuning.wanted
    if tuning.status == "queued":
        return f"Its plan {wanted.plan_id} is being computed."
    if not tuning.agents_in_touch:
        if wanted.agent_id is not None:
            return f"Agent {wanted.agent_id}, which alone may run its trials, has not been heard of lately."
        return f"No agent with {wanted.min_gpus} × {wanted.gpu} in one node has been heard of lately."
    queued = [each for each in trials if each.status == "queued"]
    if tuning.most_gpus is not None and queued and tuning.most_gpus < min(each.gpus for each in queued):
        first = queued[0]
        return (
            f"Trial {first.number} needs {first.gpus} × {wanted.gpu} in one node; of the agents that were heard of lately, "
            f"none has more than {tuning.most_gpus}."
        )
    later = [each.not_before for each in queued if each.not_before is not None]
    if queued and len(later) == len(queued):
        return f"A machine could not run trial {queued[0].number}; it is given out again at {rfc3339(min(later))}."
    return None


def _trials(document: Document, subject: Subject, told: Sequence[Told], trials: Sequence[TrialRow]) -> list[Document]:
    """All trials in the order in which they were chosen: those that ended as the document has them, and those that have not."""
    by_number = {each.number: each for each in trials}
    ended = zip(told, document["trials"], strict=True)
    found = {each.number: entry | {"number": each.number} for each, entry in ended}
    plans = {plan["rank"]: plan for plan in subject.response["plans"]}
    candidates = subject.candidates()
    is_over = any(each.tuning_status in FINISHED for each in trials)
    for each in trials:
        if each.number not in found:
            candidate = candidates[each.candidate]
            memory = plans[candidate.rank]["evaluation"]["memory"]
            found[each.number] = {
                "number": each.number,
                "rank": candidate.rank,
                "strategy": dict(candidate.strategy),
                # What an agent has not heard of yet goes on for some seconds; of the tuning it is no part any more.
                "status": "cancelled" if is_over else each.status,
                **dict.fromkeys(("reason", "step_time_s", "peak_allocated_bytes")),
                "predicted_step_time_s": candidate.step_time_s,
                "predicted_step_time_range_s": list(candidate.range_s),
                "predicted_peak_allocated_bytes": memory["peak_allocated_bytes"],
                "predicted_terms_s": dict(candidate.terms_s),
                "corrected_step_time_s": each.expected_s,
                **dict.fromkeys(("terms_s", "took_s", "record")),
                "gpu_seconds": each.gpu_seconds,
                "started_at": _moment(each.started_at),
            }
    return [
        found[number] | {"attempts": by_number[number].attempts, "agent": by_number[number].agent_id}
        for number in sorted(found)
    ]


def _without_plan(tuning: TuningRow) -> Document:
    # Its plan is computed, or could not be: there is nothing yet to say of trials.
    limits = tuning.wanted.limits
    return {
        "id": tuning.id,
        "created_at": rfc3339(tuning.created_at),
        "product_version": PRODUCT_VERSION,
        "request": None,
        "request_digest": None,
        "backend": tuning.wanted.backend,
        **{name: [] for name in ("trials", "corrections", "ranking", "next", "warnings")},
        "best": None,
        "limits": {"budget_s": limits.budget_s, "max_trials": limits.max_trials, "gpu_hours": limits.gpu_hours},
        "used": {"seconds": 0.0, "trials": 0, "gpu_hours": 0.0},
        "stopped": None if tuning.stopped is None else json.loads(tuning.stopped),
        "knobs": None,
    }


def entry_of(tuning: TuningRow) -> Document:
    """The entry of a tuning in a list, a `TuningEntry`."""
    return {
        "id": tuning.id,
        "status": tuning.status,
        "created_at": rfc3339(tuning.created_at),
        "finished_at": _moment(tuning.finished_at),
        "plan_id": tuning.wanted.plan_id,
        "backend": tuning.wanted.backend,
        "agents_in_touch": tuning.agents_in_touch,
        "stopped": None if tuning.stopped is None else json.loads(tuning.stopped),
    }


def event_of(state: TuningState) -> Document:
    """How a tuning stands as its stream tells it, a `TuningEvent`."""
    trials = [
        asdict(each) | {"knobs": None if each.knobs is None else json.loads(each.knobs)["values"]}
        for each in state.trials
    ]
    return {
        "seq": state.seq,
        "status": state.status,
        "agents_in_touch": state.agents_in_touch,
        "trials": trials,
        "best_s": min((each.step_time_s for each in state.trials if each.step_time_s is not None), default=None),
        "gpu_hours": state.gpu_seconds / 3600.0,
        "stopped": None if state.stopped is None else json.loads(state.stopped),
    }


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(moment)
