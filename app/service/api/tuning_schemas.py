"""What is sent about tunings: the document with its trials, pages of them, and a trial as an agent is given it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.service.api.schemas import ProblemDocument, Status
from app.service.intake.tuning_requests import Backend
from planner.schemas.base import ContractModel

StopReason = Literal["separated", "budget", "max-trials", "gpu-hours", "nothing-left", "cancelled", "failed"]


class TuningTrial(ContractModel):
    """One plan that is, or was, tried."""

    number: int
    """Number of the trial, in the order in which they were chosen."""
    rank: int
    """Rank of the plan in the response that is tuned: the order of the analytic models."""
    strategy: dict[str, Any]
    """The strategy that ran."""
    status: Literal["queued", "running", "ok", "oom", "hang", "crash", "cancelled"]
    """`ok`: measured; `oom`: out of memory; `hang`: past its time; `crash`: ended with an error; `cancelled`: the tuning had ended
    before. Until then, `queued` or `running`."""
    reason: str | None
    """First line of the error; null while there is none."""
    step_time_s: float | None
    """Median of the timed steps, in seconds; null unless measured."""
    peak_allocated_bytes: int | None
    """Largest allocated peak of all ranks, in bytes; null where unknown."""
    predicted_step_time_s: float
    """Seconds of a step as the response predicts them."""
    predicted_step_time_range_s: Annotated[list[float], Field(min_length=2, max_length=2)]
    """The range of that prediction, in seconds."""
    predicted_peak_allocated_bytes: int | None
    """Predicted allocated peak of the fullest GPU, in bytes."""
    predicted_terms_s: dict[str, float] | None
    """Predicted seconds by named term, which sum to the predicted step."""
    corrected_step_time_s: float | None
    """Seconds predicted before it was measured, with what had been learnt by then; null where nothing had."""
    terms_s: dict[str, float] | None
    """Measured seconds by named term; null where the steps were not traced."""
    took_s: float | None
    """Seconds from the start of the trial until its GPUs were free again; null while it runs."""
    gpu_seconds: float
    """Number of GPU seconds of all its attempts, the lost ones included."""
    started_at: str | None
    """When the newest attempt began, RFC 3339 in UTC; null before the first."""
    record: dict[str, Any] | None
    """The whole trial record; null while it runs."""
    attempts: int | None = None
    """Number of times that it was begun; an agent that falls silent costs one."""
    agent: str | None = None
    """Id of the agent that runs or has run it."""


class TuningBest(ContractModel):
    """The fastest plan that was measured."""

    strategy: dict[str, Any]
    """Its strategy."""
    rank: int
    """Its rank in the response that was tuned."""
    step_time_s: float
    """Its measured seconds of a step."""
    gain_fraction: float | None
    """Share of the analytic first's measured time by which it is faster; null where that one was not measured."""


# Fields may be added to what a trial teaches, as long as those named here stay.
class TuningCorrection(ContractModel):
    """What the trials say of one term of the model."""

    model_config = ConfigDict(extra="allow")

    term: str
    """Name of the term."""
    factor: float
    """Number by which its prediction is multiplied."""
    kept: bool
    """Whether it lowers the error on trials that it was not fitted to."""


class TuningRanking(ContractModel):
    """One plan before and after the trials."""

    model_config = ConfigDict(extra="allow")

    strategy: dict[str, Any]
    """Its strategy."""
    rank_before: int
    """Its rank in the response that was tuned."""
    rank_after: int | None
    """Its rank by what is known now: measured time, or corrected prediction; null where it failed or needs too much memory."""
    predicted_step_time_s: float | None = None
    """Seconds of a step as the response predicts them."""
    corrected_step_time_s: float | None = None
    """The same in seconds, with the corrections."""
    corrected_range_s: list[float] | None = None
    """Its range, in seconds."""
    measured_step_time_s: float | None = None
    """Measured seconds of a step; null where it was not tried."""


class TuningSpending(ContractModel):
    """What a tuning may spend."""

    budget_s: float | None
    """Seconds of all trials together."""
    max_trials: int | None
    """Number of trials."""
    gpu_hours: float | None
    """Number of GPU hours of all trials together."""


class TuningUsed(ContractModel):
    """What a tuning has spent."""

    seconds: float
    """Number of seconds of all trials that ended."""
    trials: int
    """Number of trials that ended."""
    gpu_hours: float
    """Number of GPU hours of all trials together, attempts that were lost included."""


class TuningStop(ContractModel):
    """Why no more trials are made."""

    reason: StopReason
    """`separated`: the best is clearly the best; a limit that is spent; `nothing-left`: every candidate was tried; or how it ended."""
    message: str
    """The same in a sentence, with its numbers."""


class TuningNext(ContractModel):
    """A plan that would be worth measuring."""

    model_config = ConfigDict(extra="allow")

    strategy: dict[str, Any]
    """Its strategy."""
    why: str
    """What it would tell."""


class TuningDocument(ContractModel):
    """A tuning: what was asked, every trial, what they teach, and what is best now."""

    id: str
    """Id of the tuning."""
    status: Status
    """`queued` until its plan is there; `failed` where no trial could be measured."""
    created_at: str
    """When it was asked, RFC 3339 in UTC."""
    started_at: str | None
    """When trials could begin, RFC 3339 in UTC; null until then."""
    finished_at: str | None
    """When it ended, RFC 3339 in UTC; null until then."""
    product_version: str
    """Release of meshwright."""
    plan_id: str | None
    """The plan that is tuned; it may have been deleted since."""
    request: dict[str, Any] | None
    """The plan request with every default; null until the plan is there."""
    request_digest: str | None
    """Digest of the plan request; null until the plan is there."""
    backend: Backend
    """What runs the trials."""
    agents_in_touch: int
    """Number of agents that could run its trials and were heard of within the last minute; it waits while there is none."""
    waits: str | None
    """Why none of its trials runs just now, in a sentence, such as that no agent has as many GPUs; null where one runs or can begin."""
    trials: list[TuningTrial]
    """The trials in the order in which they were chosen."""
    best: TuningBest | None
    """The fastest measured plan; null while there is none."""
    corrections: list[TuningCorrection]
    """What the trials say of the terms of the model."""
    ranking: list[TuningRanking]
    """Every candidate, the best first."""
    limits: TuningSpending
    """What it may spend."""
    used: TuningUsed
    """What it has spent."""
    stopped: TuningStop | None
    """Why no more trials are made; null while they are."""
    next: list[TuningNext]
    """What would be worth measuring next."""
    knobs: dict[str, Any] | None
    """The tuning of the winner's run-time knobs, where it was asked for."""
    warnings: list[str]
    """What makes the answer less sure."""
    error: ProblemDocument | None
    """Why the tuning failed."""


class TuningEntry(ContractModel):
    """A tuning in a list."""

    id: str
    """Id of the tuning."""
    status: Status
    """Its state."""
    created_at: str
    """When it was asked, RFC 3339 in UTC."""
    finished_at: str | None
    """When it ended, RFC 3339 in UTC; null until then."""
    plan_id: str
    """The plan that is tuned."""
    backend: Backend
    """What runs the trials."""
    agents_in_touch: int
    """Number of agents that could run its trials and were heard of within the last minute."""
    stopped: TuningStop | None
    """Why no more trials are made; null while they are."""


class TuningPage(ContractModel):
    """Tunings, newest first."""

    items: list[TuningEntry]
    """The tunings of this page."""
    next_cursor: str | None
    """Where the next page begins; null at the end."""


class LeasedTrial(ContractModel):
    """A trial to be run: one plan, and what runs it."""

    tuning: str
    """Id of the tuning."""
    number: int
    """Number of the trial in the tuning."""
    row: dict[str, Any]
    """The evaluate row that is to be run: model, cluster, training and strategy."""
    backend: Backend
    """What runs it."""
    gpus: int
    """Number of GPUs that it needs."""
    deadline_s: float
    """Seconds after which it counts as hung."""
    hopeless_above_s: float | None
    """Seconds of a step: a trial whose first timed steps all take longer may be ended early; null where none may."""
    files: dict[str, str] | None
    """Launch files by path, for the back end `export`; null for the other."""


class TrialState(ContractModel):
    """How a trial stands."""

    number: int
    """Number of the trial, in the order in which they were chosen."""
    status: Literal["queued", "running", "ok", "oom", "hang", "crash"]
    """`queued` or `running`, or how its plan ended."""
    attempts: int
    """Number of times that it was begun."""
    agent: str | None
    """Id of the agent that runs or has run it."""
    knobs: dict[str, Any] | None
    """Values of run-time knobs with which the best plan is tried again; null for the trial of a plan."""
    step_time_s: float | None
    """Median of its timed steps, in seconds; null unless measured."""


class TuningEvent(ContractModel):
    """How a tuning stands: each event tells all of it, so that whoever missed some has missed nothing."""

    seq: int
    """Number of this state; the same state has the same number."""
    status: Status
    """State of the tuning."""
    agents_in_touch: int
    """Number of agents that could run its trials and were heard of within the last minute."""
    trials: list[TrialState]
    """Its trials so far."""
    best_s: float | None
    """Seconds of a step of the fastest plan so far; null while none was measured."""
    gpu_hours: float
    """Number of GPU hours of all trials so far."""
    stopped: TuningStop | None
    """Why no more trials are made; null while they are."""


# A status of its own beside that of the plan: out of memory is a result, and the trial has succeeded with it.
class TrialEnded(ContractModel):
    """A trial after its result: `succeeded` once its record is kept, `queued` where it is given out again."""

    tuning: str
    """Id of the tuning."""
    number: int
    """Number of the trial in the tuning."""
    status: Status
    """State of the trial."""
    trial_status: Literal["ok", "oom", "hang", "crash"] | None
    """How the plan ended in it; null while it is given out again."""
    reason: str | None
    """First line of its error; null where it was measured."""
    step_time_s: float | None
    """Median of its timed steps, in seconds; null unless measured."""
