"""Trials of tunings as agents are given them, and what becomes of their results."""

from __future__ import annotations

import json
from typing import Any

import structlog

from app.service.api.agent_schemas import MeasurementResult
from app.service.db.plan_result import encoded
from app.service.db.tuning_trials import TrialRow, hard_limit_s
from app.service.parts import Service
from app.service.tunings.trial_jobs import gpu_of
from cost_models import presets
from cost_models.errors import InvalidInputError, Problem
from profiler.trial.record import TrialRecord

log = structlog.get_logger("meshwright.tunings")
_PARTS = ("model", "cluster", "training", "strategy")


def leased_trial(trial: TrialRow, *, lease_s: float) -> dict[str, Any]:
    """A trial as its agent is given it, a `LeasedJob`."""
    given = json.loads(trial.job)
    return {
        "kind": "trial",
        "id": f"{trial.tuning_id}-trial-{trial.number}-{trial.attempts}",
        "lease": trial.lease,
        "attempt": trial.attempts,
        "lease_s": lease_s,
        "budget_s": given["deadline_s"],
        "time_limit_s": hard_limit_s(given["deadline_s"]),
        "framework": given["row"]["training"]["framework"],
        "name": None,
        "trial": {"tuning": trial.tuning_id, "number": trial.number, **given},
    }


def trial_document(trial: TrialRow) -> dict[str, Any]:
    """A trial after its result, a `TrialEnded`."""
    record = {} if trial.record is None else json.loads(trial.record)
    return {
        "tuning": trial.tuning_id,
        "number": trial.number,
        "status": "succeeded" if trial.status == "ended" else trial.status,
        "trial_status": record.get("status"),
        "reason": record.get("reason"),
        "step_time_s": record.get("step_time_s"),
    }


def ended_trial(service: Service, tenant: str, agent_id: str, asked: MeasurementResult) -> TrialRow:
    """The trial after what its agent says of it.

    Raises:
        NotFoundError: the tenant has no such agent.
        InvalidInputError: the record is missing, is none, or is of another plan.
        WrongStateError: the lease is no longer the trial's, or it has ended with another record.
    """
    trials = service.trials
    if asked.outcome == "given-back":
        return trials.give_back(tenant, agent_id, lease=asked.lease)
    if asked.outcome == "failed":
        if asked.error is None:
            raise InvalidInputError([Problem("/error", "error is required", "Say why nothing was measured.")])
        reason = " ".join(f"{asked.error.message} {asked.error.hint}".split())
        trial = trials.could_not_run(tenant, agent_id, lease=asked.lease, reason=reason)
    else:
        if asked.trial is None:
            raise InvalidInputError([Problem("/trial", "trial is required", "Send the record of the trial.")])
        record = TrialRecord.from_json(asked.trial, pointer="/trial")
        job = trials.job_of(tenant, agent_id, lease=asked.lease)
        _require_same(record, json.loads(job))
        text = encoded(record.to_json())
        trial = trials.finish(tenant, agent_id, lease=asked.lease, record=text, gpu_seconds=record.gpu_seconds)
    try:
        service.conductor.advance(tenant, trial.tuning_id)
    except Exception:
        # The record is kept, and an agent that is told of a failure would send it for ever. Whoever asks next for a trial, or for
        # the tuning, does what is due.
        log.exception("tuning not advanced", tuning=trial.tuning_id)
    return trial


def _require_same(record: TrialRecord, given: dict[str, Any]) -> None:
    row, at_all = given["row"], object()
    for name in dict.fromkeys((*_PARTS, *row, *record.row)):
        if record.row.get(name, at_all) != row.get(name, at_all):
            message = f"the record is of another {name} than the trial that was leased"
            raise InvalidInputError([Problem(f"/trial/row/{name}", message, "Send the record of the leased row.")])
    planned, ran_on = gpu_of(row), record.machine
    if presets.are_other_gpus(planned, ran_on.gpu):
        message = f"the trial ran on {ran_on.gpu}, but it is of a plan for {planned}"
        raise InvalidInputError([Problem("/trial/machine/gpu", message, "Run it on the GPUs of the plan.")])
    if ran_on.gpus != given["gpus"]:
        message = f"the trial ran on {ran_on.gpus} GPUs; its plan has {given['gpus']}"
        raise InvalidInputError([Problem("/trial/machine/gpus", message, "Run it on the GPUs of the plan.")])
    if record.backend != given["backend"]:
        message = f"the record is of the back end {record.backend}; the trial is to be run by {given['backend']}"
        raise InvalidInputError([Problem("/trial/backend", message, "Run the back end that was asked for.")])
