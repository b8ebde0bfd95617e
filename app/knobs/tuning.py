"""Tuning of a plan's run-time knobs by measured steps. It starts from a plan response, is kept in a database, and is resumed by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from app.errors import NotFoundError, WrongStateError
from app.knobs.storage import opened_storage, running, storage_shown
from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.fields import LARGEST, SMALLEST, Flag, Fraction, Name, Quantity, validated
from cost_models.specs.training import Framework
from planner.knobs import default_values, knobs_of, meanings, spelled
from planner.schemas.base import Degree
from planner.schemas.strategy import ZeroStage
from planner.search.bayes import KnobStudy, StudyExistsError, Trial, study_names

Json = dict[str, Any]
_LAST_TRIAL = 2**31 - 1
"""Largest number that an integer column of every database can hold."""


# A response is read back from a file that somebody may have edited, so the few fields that the tuning needs are validated. The
# rest is ignored, so that responses of other versions can be tuned as well.
class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Training(_Part):
    framework: Framework


class _Overlap(_Part):
    grad_reduce: Flag


class _Offload(_Part):
    optimizer_fraction: Fraction


class _Strategy(_Part):
    """The fields of a strategy that decide which knobs there are."""

    dp: Degree
    cp: Degree
    zero: ZeroStage
    overlap: _Overlap
    offload: _Offload


class _Evaluation(_Part):
    step_time_s: Quantity


class _Plan(_Part):
    strategy: _Strategy
    evaluation: _Evaluation


class _Response(_Part):
    request_digest: Name


class _Tuning(_Part):
    name: Annotated[Name, Field(pattern=r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$")]


class KnobTuning:
    """One tuning. Create it with `start` or `resume`."""

    def __init__(self, study: KnobStudy, *, name: str) -> None:
        self._study, self.name = study, name

    @classmethod
    def start(
        cls, response: Mapping[str, Any], *, storage: str, plan: int = 1, name: str | None = None, seed: int = 0
    ) -> KnobTuning:
        """A new tuning of one plan of a response. Its first trial is the framework's defaults.

        Args:
            response: what `meshwright.plan` returned.
            storage: SQLAlchemy URL, such as "sqlite:///knobs.db"; Optuna keeps its own tables there.
            plan: rank of the plan.
            name: name of the tuning; by default made of the request's digest and the rank.
            seed: seed of the sampler.

        Raises:
            InvalidInputError: this is not a plan response, or it has no such plan.
            NotExpressibleError: the plan has no knobs that can be tuned.
            WrongStateError: the storage already has a tuning of that name.
        """
        chosen, training = _plan_of(response, plan)
        framework, strategy = training["framework"], chosen["strategy"]
        knobs = knobs_of(framework, strategy)
        name = f"{response['request_digest'][:12]}-{plan}" if name is None else name
        validated(_Tuning, {"name": name}, pointer="")
        # Kept with the study, so that it can be resumed without the response from which it began.
        about = {
            "framework": framework,
            "framework_version": training.get("framework_version"),
            "strategy": strategy,
            "predicted_step_time_s": chosen["evaluation"]["step_time_s"],
            "request_digest": response["request_digest"],
        }
        kept = opened_storage(storage, must_exist=False)
        try:
            with running():
                study = KnobStudy.start(
                    knobs, name=name, seed=seed, storage=kept, first=default_values(framework, strategy), about=about
                )
        except StudyExistsError as error:
            message = f"{storage_shown(storage)} already has a tuning named {name}"
            raise WrongStateError(message, hint="Continue it with `ask`, or choose another name.") from error
        return cls(study, name=name)

    @classmethod
    def resume(cls, storage: str, *, name: str | None = None) -> KnobTuning:
        """The tuning of that name, or the only one in the storage.

        Raises:
            NotFoundError: there is no tuning of that name, or none at all.
            InvalidInputError: the storage has several tunings and no name was given.
            WrongStateError: meshwright did not start the study of that name.
        """
        kept = opened_storage(storage, must_exist=True)
        with running():
            names = study_names(kept)
            if name is None and len(names) > 1:
                message = f"{storage_shown(storage)} has several tunings: {', '.join(names)}"
                raise InvalidInputError([Problem("/name", message, "Give the name of one of them.")])
            if name not in ([None, *names] if names else []):
                shown = f"no tuning named {name}" if name else "no tuning"
                hint = f"It has: {', '.join(names)}." if names else "Start one from a plan response first."
                raise NotFoundError(f"{storage_shown(storage)} has {shown}", hint=hint)
            name = name or names[0]
            try:
                study = KnobStudy.resume(name, storage=kept)
                # Fails here, with a message, rather than at the first question: Optuna's tables may hold studies of other programs.
                default_values(study.about["framework"], study.about["strategy"])
                return cls(study, name=name)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                message = f"{name} in {storage_shown(storage)} is a study that meshwright did not start"
                raise WrongStateError(message, hint="Choose another name or another storage.") from error

    @property
    def knobs(self) -> Json:
        """Range, meaning and default of every knob, by the framework's name for it."""
        about = self._study.about
        known, defaults = meanings(about["framework"]), default_values(about["framework"], about["strategy"])
        return {
            name: {"low": knob.low, "high": knob.high, "default": defaults[name], "meaning": known[name]}
            for name, knob in self._study.knobs.items()
        }

    def ask(self) -> Json:
        """The next trial: its number, its values, and how to pass them to the framework."""
        with running():
            return _trial_document(self._study.ask())

    def tell(self, trial: int, step_time_s: float | None) -> None:
        """Stores the measured median seconds of a step of a trial, or None if the trial could not run.

        Raises:
            InvalidInputError: the seconds are out of range.
            WrongStateError: there is no such trial, or it was told already.
        """
        if step_time_s is not None and not SMALLEST <= step_time_s <= LARGEST:
            message = f"step_time_s {step_time_s} is not between {SMALLEST:g} and {LARGEST:g} s"
            raise InvalidInputError(
                [Problem("/step_time_s", message, "Give the seconds of one step, or say that the trial failed.")]
            )
        with running():
            try:
                if not 0 <= trial <= _LAST_TRIAL:
                    raise ValueError(trial)  # noqa: TRY301 - as Optuna does
                self._study.tell(trial, step_time_s)
            except ValueError as error:
                message = f"trial {trial} of {self.name} is not open"
                raise WrongStateError(message, hint="Ask for a trial first. Each can be told only once.") from error

    def best(self) -> Json:
        """The best trial so far, how many were told, and the gain over the framework's defaults if those were measured."""
        with running():
            best, counts, about = self._study.best, self._study.counts(), self._study.about
            defaults = default_values(about["framework"], about["strategy"])
            plain = [trial.step_s for trial in self._study.trials() if dict(trial.values) == defaults]
        # The sampler may propose the defaults again; the best of their measurements is the fairest baseline.
        default_s = min((seconds for seconds in plain if seconds is not None), default=None)
        found: Json = {
            "name": self.name,
            **counts,
            "predicted_step_time_s": about["predicted_step_time_s"],
            "default_step_time_s": default_s,
            "best": None,
            "gain_fraction": None,
        }
        if best is not None and best.step_s is not None:
            found["best"] = {**_trial_document(best), "step_time_s": best.step_s}
            found["gain_fraction"] = None if default_s is None else 1.0 - best.step_s / default_s
        return found


def _trial_document(trial: Trial) -> Json:
    return {"trial": trial.number, "values": dict(trial.values), **spelled(trial.values)}


def _plan_of(response: Mapping[str, Any], rank: int) -> tuple[Json, Json]:
    """The plan of that rank, and the training part of its request."""
    plans, request = response.get("plans"), response.get("request")
    training = request.get("training") if isinstance(request, dict) else None
    told = isinstance(training, dict) and "framework" in training and "request_digest" in response
    if not isinstance(plans, list) or not isinstance(training, dict) or not told:
        message = "this is not a plan response: it lacks plans, request or request_digest"
        raise InvalidInputError([Problem("", message, "Create one with `meshwright plan ... --json`.")])
    validated(_Response, response, pointer="")
    validated(_Training, training, pointer="/request/training")
    for position, plan in enumerate(plans):
        if isinstance(plan, dict) and plan.get("rank") == rank:
            validated(_Plan, plan, pointer=f"/plans/{position}")
            return plan, training
    message = f"the response has {len(plans)} plans, and none of them has rank {rank}"
    raise InvalidInputError(
        [Problem("/plans", message, "Give the rank of one of them, or plan again and ask for more (--top).")]
    )
