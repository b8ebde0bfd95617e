"""The run-time knobs of a tuning's best plan: trials of the same plan with other values, after its plans were tried.

What is stored of these trials is the truth, and the sampler is made anew from it whenever the next values are chosen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.service.db.plan_result import encoded
from app.service.db.tuning_trials import NewTrial, TrialRow
from app.service.db.tunings import TuningRow
from app.service.tunings.trial_jobs import Subject
from app.tuning.backends import one_line
from cost_models.errors import InvalidInputError, NotExpressibleError
from planner.knobs import default_values, knobs_of, spelled
from planner.search.bayes import KnobStudy
from planner.search.standing import Standing

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KnobPhase:
    """The tuning of the knobs of one plan."""

    tuning: TuningRow
    subject: Subject
    rank: int
    trials: Sequence[TrialRow]
    """Those of the knobs, in the order in which they were chosen."""
    spent_gpu_hours: float
    """By all trials of the tuning, those of its plans included."""

    @classmethod
    def of(
        cls, tuning: TuningRow, subject: Subject, standing: Standing, trials: Sequence[TrialRow]
    ) -> KnobPhase | None:
        """The phase of a tuning whose plans were tried; None where its knobs are not asked for, or no plan was measured."""
        own = knob_trials(trials)
        if standing.best is None or not _wanted(tuning):
            return None
        # A record that comes late may make another plan the best; what was begun is then still of the one before.
        rank = json.loads(str(own[0].knobs))["rank"] if own else standing.candidates[standing.best].rank
        return cls(tuning, subject, rank, own, gpu_hours(trials))

    def refusal(self) -> str | None:
        """Why they cannot be tuned, in one line; None where they can."""
        if self.tuning.wanted.backend == "pytorch":
            return "PyTorch's own parallelism has no knobs that are tuned"
        try:
            self._job(self._defaults())
        except (NotExpressibleError, InvalidInputError) as error:
            return one_line(error)
        return None

    @property
    def wants_more(self) -> bool:
        """Whether another trial may be chosen."""
        limits = self.tuning.wanted.limits
        return (
            len(self.trials) < _wanted(self.tuning) and self.spent_gpu_hours < limits.gpu_hours and not self.refusal()
        )

    @property
    def is_over(self) -> bool:
        """Whether all of them have ended, and none follows."""
        return not self.wants_more and all(each.record is not None for each in self.trials)

    def next(self, *, number: int) -> NewTrial:
        """The next values, as a trial of this number; those of the framework first."""
        framework, strategy = self._plan()
        defaults = self._defaults()
        seed = int(json.loads(self.tuning.wanted.asked)["seed"])
        first = None if self.trials else defaults
        study = KnobStudy.start(knobs_of(framework, strategy), name="knobs", seed=seed, first=first)
        for each in self.trials:
            study.add(_values(each), _step_s(each), is_open=each.record is None)
        values = dict(study.ask().values)
        given = self._job(values)
        # What is known best of its step is what the same plan took with the framework's values.
        measured = [seconds for each in self.trials if (seconds := _step_s(each)) is not None]
        expected_s = min(measured, default=self._predicted_s())
        # The candidates of a tuning are its plans, and behind them the values of these knobs, so that none is tried twice.
        place = len(self.subject.ranks) + len(self.trials)
        told = encoded({"rank": self.rank, "values": values})
        return NewTrial(number, place, given["gpus"], encoded(given), expected_s, knobs=told)

    def document(self) -> Document:
        """What was found of the knobs: the field `knobs` of a tuning's document."""
        ended = [each for each in self.trials if each.record is not None]
        measured = [(seconds, each) for each in ended if (seconds := _step_s(each)) is not None]
        defaults = self._defaults()
        default_s = min((seconds for seconds, each in measured if _values(each) == defaults), default=None)
        found: Document = {
            "name": f"{self.tuning.id}-knobs-{self.rank}",
            "told": len(measured),
            "failed": len(ended) - len(measured),
            "open": len(self.trials) - len(ended),
            "predicted_step_time_s": self._predicted_s(),
            "default_step_time_s": default_s,
            "best": None,
            "gain_fraction": None,
            "trials": [_trial_document(each) for each in ended],
        }
        if measured:
            best_s, best = min(measured, key=lambda pair: (pair[0], pair[1].number))
            values = _values(best)
            found["best"] = {"trial": best.number, "values": values, **spelled(values), "step_time_s": best_s}
            found["gain_fraction"] = None if default_s is None else 1.0 - best_s / default_s
        return found

    def _plan(self) -> tuple[str, Mapping[str, Any]]:
        plan = next(each for each in self.subject.response["plans"] if each["rank"] == self.rank)
        return self.subject.response["request"]["training"]["framework"], plan["strategy"]

    def _defaults(self) -> dict[str, float | int]:
        return default_values(*self._plan())

    def _predicted_s(self) -> float:
        plan = next(each for each in self.subject.response["plans"] if each["rank"] == self.rank)
        return float(plan["evaluation"]["step_time_s"])

    def _job(self, values: Mapping[str, Any]) -> Document:
        knobs_of(*self._plan())  # refuses a plan that has none
        wanted = self.tuning.wanted
        return self.subject.job(
            self.rank, backend=wanted.backend, deadline_s=wanted.limits.trial_limit_s, knobs=spelled(values)
        )


def plan_trials(trials: Sequence[TrialRow]) -> list[TrialRow]:
    """Those of the plans."""
    return [each for each in trials if each.knobs is None]


def knob_trials(trials: Sequence[TrialRow]) -> list[TrialRow]:
    """Those of the best plan's knobs."""
    return [each for each in trials if each.knobs is not None]


def gpu_hours(trials: Sequence[TrialRow]) -> float:
    """GPU hours of all attempts of these trials."""
    return sum(each.gpu_seconds for each in trials) / 3600.0


def _wanted(tuning: TuningRow) -> int:
    return int(json.loads(tuning.wanted.asked).get("knobs", 0))


def _values(trial: TrialRow) -> Document:
    values: Document = json.loads(str(trial.knobs))["values"]
    return values


def _step_s(trial: TrialRow) -> float | None:
    return None if trial.record is None else json.loads(trial.record)["step_time_s"]


def _trial_document(trial: TrialRow) -> Document:
    record = json.loads(str(trial.record))
    told = {name: record[name] for name in ("status", "reason", "step_time_s", "took_s")}
    return {"number": trial.number, "values": _values(trial), **told}
