"""The loop of a tuning: asks a study for a plan, runs it through a back end, tells what was found, until the study has stopped.

Whatever ends the loop, a trial that ended is kept and one that was cut off is given back, so that it can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.tuning.backends import Backend
from app.tuning.document import DocumentStatus, candidate_plans, now, trial_document, tuning_document
from app.tuning.learnt import corrections_of
from app.tuning.owners import has_died, this_process
from app.tuning.rows import trial_row
from cost_models.errors import MeasurementError
from planner.search.beliefs import Candidate
from planner.search.standing import Limits, Outcome, Standing, Stop, Told
from planner.search.tuner import Ask, TuningStudy

Json = dict[str, Any]
DEADLINE_S = 120.0
"""Seconds that one trial may take at most: start, warm-up and steps of the largest models take less than a minute."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A trial begins."""

    rank: int
    strategy: Mapping[str, Any]
    predicted_step_time_s: float
    expected_step_time_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A trial has ended."""

    trial: Mapping[str, Any]
    """Its entry in the document."""


@dataclass(frozen=True, slots=True)
class NotKept:
    """A trial has ended whose record the storage did not take: whoever hears of it has the only copy."""

    record: Json


Event = Begun | Ended | NotKept


@dataclass(frozen=True, slots=True, eq=False)
class Tuning:
    """One tuning: the plans of a response, and the study of their trials."""

    response: Mapping[str, Any]
    study: TuningStudy
    refused: Mapping[int, str] = field(default_factory=dict)
    """Plans that the back end cannot run, by rank, each with the reason."""
    warnings: Sequence[str] = ()

    @classmethod
    def start(
        cls,
        response: Mapping[str, Any],
        backend: Backend,
        *,
        name: str,
        storage: Any = None,
        seed: int = 0,
        limits: Limits,
    ) -> Tuning:
        """A new tuning of the plans of a response.

        Raises:
            MeasurementError: the back end can run none of them.
            StudyExistsError: the storage already has a study of that name.
        """
        candidates, refused = runnable(response, backend)
        if not candidates:
            raise MeasurementError(nothing_runs(response, refused), hint=_HINT)
        about = {
            "request_digest": response["request_digest"], "backend": backend.name, "created_at": now(),
            "refused": {str(rank): why for rank, why in refused.items()},
        }  # fmt: skip
        study = TuningStudy.start(candidates, name=name, storage=storage, seed=seed, about=about, limits=limits)
        return cls(response, study, refused)

    @classmethod
    def resume(cls, response: Mapping[str, Any], study: TuningStudy) -> Tuning:
        """A tuning that goes on with a study. Trials whose process on this machine has died are given back."""
        for each in study.running():
            if has_died(each.owner):
                study.release(each.number)
        return cls(response, study, {int(rank): why for rank, why in study.about["refused"].items()})

    def run(
        self, backend: Backend, *, tell: Callable[[Event], None] | None = None, deadline_s: float = DEADLINE_S
    ) -> None:
        """Runs trials until the study stops, or until what is left to run is run by others.

        Raises:
            KeyboardInterrupt: somebody pressed Ctrl-C; the trial that ran is given back.
        """
        tell = tell or (lambda _event: None)
        while (ask := self.study.ask(owner=this_process())) is not None:
            candidate = self.study.candidates[ask.candidate]
            tell(Begun(candidate.rank, candidate.strategy, candidate.step_time_s, ask.expected_step_time_s))
            record = self._record(ask, candidate, backend, deadline_s)
            try:
                self.study.tell(ask.number, Outcome.of_record(record))
            except Exception:
                tell(NotKept(record))
                raise
            tell(Ended(self._trial(ask.number)))

    def _record(self, ask: Ask, candidate: Candidate, backend: Backend, deadline_s: float) -> Json:
        # What the budget has left bounds the trial, too. It stops trials that would be cut off before they begin (`Standing.closed`).
        limits, used = self.study.limits, self.study.used
        if limits.budget_s is not None:
            deadline_s = min(deadline_s, limits.budget_s - used.seconds)
        try:
            return backend.run(
                trial_row(self.response, candidate.rank),
                deadline_s=deadline_s,
                hopeless=self.study.standing().is_hopeless,
            )
        except BaseException:
            # Also where somebody ends the program: a trial that was cut off has told nothing of its plan.
            self.study.release(ask.number)
            raise

    def _trial(self, number: int) -> Json:
        standing = self.study.standing()
        place, told = next((at, each) for at, each in enumerate(standing.told, start=1) if each.number == number)
        rank = standing.candidates[told.candidate].rank
        plan = next(each for each in self.response["plans"] if each["rank"] == rank)
        return trial_document(place, told, standing, plan)

    def document(self, *, backend: str, ended: Stop | None = None, knobs: Mapping[str, Any] | None = None) -> Json:
        """What was found so far, as JSON.

        Args:
            backend: name of what ran the trials.
            ended: why no more were run where the study itself would go on; a later run can continue it.
            knobs: the tuning of the best plan's run-time knobs.
        """
        # Not stored with the study, which the next run of the same command is to continue.
        standing = self.study.standing()
        if ended is not None:
            standing = replace(standing, by_hand=ended)
        return tuning_document(
            self.response, standing, tuning_id=self.study.name, status=_status(standing),
            created_at=self.study.about["created_at"], backend=backend, knobs=knobs,
            corrections=corrections_of(self.response, standing),
            warnings=[*self.warnings, *refusals_said(self.refused)],
        )  # fmt: skip


_HINT = "Plan with other constraints, such as --fixed pp=1, or choose another --backend."


def runnable(response: Mapping[str, Any], backend: Backend) -> tuple[list[Candidate], dict[int, str]]:
    """The plans of a response that a back end can run, best first, and why it cannot run the others, by rank."""
    candidates, refused = [], {}
    for plan in candidate_plans(response):
        why = backend.refusal(trial_row(response, plan["rank"]))
        if why is None:
            candidates.append(Candidate.of_plan(plan))
        else:
            refused[plan["rank"]] = why
    return candidates, refused


def nothing_runs(response: Mapping[str, Any], refused: Mapping[int, str]) -> str:
    """Why no trial can be run, with the reason of each plan."""
    if not response["plans"]:
        return "no plan fits, so there is nothing to measure"
    return f"no trial was run, because the back end can run none of the {len(refused)} plans. {' '.join(refusals_said(refused))}"


def refusals_said(refused: Mapping[int, str]) -> list[str]:
    """A sentence for each reason why plans were not measured, with their ranks."""
    # Most plans are refused for the same few reasons, and a line for each would bury them.
    ranks: dict[str, list[int]] = {}
    for rank, why in refused.items():
        ranks.setdefault(why, []).append(rank)
    found = []
    for why, those in ranks.items():
        plans = f"Plan {those[0]} was" if len(those) == 1 else f"Plans {', '.join(map(str, those))} were"
        found.append(f"{plans} not measured: {why.rstrip('.')}.")
    return found


def _status(standing: Standing) -> DocumentStatus:
    if standing.closed is None or standing.running:
        return "running"
    if standing.closed.reason == "cancelled":
        return "cancelled"
    return "succeeded" if standing.measured_s and standing.closed.reason != "failed" else "failed"


def failures_said(told: Sequence[Told], candidates: Sequence[Candidate]) -> list[str]:
    """A line for each trial that failed: its plan, how it ended, and the first line of the error."""
    return [
        f"plan {candidates[each.candidate].rank}: {each.outcome.status}, {(each.outcome.record or {}).get('reason')}"
        for each in told
        if each.outcome.status != "ok"
    ]
