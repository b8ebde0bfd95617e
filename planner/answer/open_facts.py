"""Facts that a row leaves open and on which its verdict depends.

A row that does not state, say, its recomputation is priced with the framework's default, but the run it describes may have
been set up otherwise. Calling such a row out of memory because of a default would be inventing a fact. So each open fact is
given its other values, one at a time. Where one of them alone would let the row fit, the verdict is `at-risk`, the memory
range starts at the leaner reading, and a reason names the fact. Where no single fact is enough, the leanest readings are
combined. A plan request has no open facts, because its answer states every default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from cost_models.errors import InvalidInputError
from cost_models.evaluate import Verdict
from cost_models.inputs.training import resolve_training
from cost_models.job import Job
from cost_models.specs.training import CrossEntropy, Training
from planner.answer.evaluation import Reason
from planner.request.resolved import training_document
from planner.schemas.strategy import StrategyInput

STRATEGY_FACTS = ("recompute", "zero", "grad_sync")
TRAINING_FACTS = ("cross_entropy", "grad_dtype", "param_dtype")
"""The facts that may be left open, in the order in which reasons name them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An open fact with one of the values that it does not have by default."""

    field: str
    value: Any
    assumed: Any
    """The default with which the row was priced."""

    @property
    def name(self) -> str:
        """The fact as a row spells it, such as "strategy.zero"."""
        return f"{'training' if self.field in TRAINING_FACTS else 'strategy'}.{self.field}"


@dataclass(frozen=True, slots=True)
class Reading:
    """A row in which one or several open facts are read otherwise than by default."""

    choices: tuple[Choice, ...]

    def strategy(self, given: StrategyInput) -> StrategyInput:
        """The row's strategy, read this way."""
        chosen = {choice.field: choice.value for choice in self.choices if choice.field in STRATEGY_FACTS}
        return given.model_copy(update=chosen) if chosen else given

    def job(self, job: Job) -> Job | None:
        """The row's job, read this way; None where its training is refused."""
        chosen = tuple((choice.field, choice.value) for choice in self.choices if choice.field in TRAINING_FACTS)
        return _stating(job, chosen) if chosen else job


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on a legal reading, and the low end of its memory range."""

    reading: Reading
    verdict: Verdict
    device_low_bytes: float


def single_readings(job: Job, assumed: Mapping[str, Any]) -> list[Reading]:
    """The row with each of its open facts at each other value, one at a time; for the arguments see `open_choices`."""
    return [Reading((choice,)) for choice in open_choices(job, assumed)]


def open_choices(job: Job, assumed: Mapping[str, Any]) -> list[Choice]:
    """Every other value of every fact that neither the job nor the strategy states.

    Args:
        job: the row's own job, whose `training.assumed` tells what its training leaves open.
        assumed: the defaults that were applied to its strategy.
    """
    # Recomputation is tried only upwards, and gradients only as reduced at once: the other way needs more memory and cannot
    # turn a verdict. A dtype is tried only at the width of the training precision, the leanest that frameworks use.
    other: dict[str, Sequence[Any]] = {
        "recompute": ("selective", "full"),
        "zero": job.framework.choices.zero,
        "grad_sync": ("each",),
    }
    choices = [
        Choice(field, value, assumed[field])
        for field in STRATEGY_FACTS
        if field in assumed
        for value in other[field]
        if value != assumed[field]
    ]
    stored = job.training.compute_dtype
    other = {"cross_entropy": lean_losses(job.training), "grad_dtype": (stored,), "param_dtype": (stored,)}
    return choices + [
        Choice(field, value, getattr(job.training, field))
        for field in TRAINING_FACTS
        if field in job.training.assumed
        for value in other[field]
        if value != getattr(job.training, field)
    ]


def lean_losses(training: Training) -> tuple[CrossEntropy, ...]:
    """The leaner cross entropies that users of the framework run in place of the unfused one."""
    engine: tuple[CrossEntropy, ...] = ("te",) if training.transformer_impl == "transformer-engine" else ()
    chunked: tuple[CrossEntropy, ...] = ("linear",) if training.model_impl != "native" else ()
    return ("fused", "compiled", *engine, *chunked)


def combined_readings(outcomes: Iterable[Outcome], *, priced_low_bytes: float) -> list[Reading]:
    """The leanest values of several facts together: the two that save the most, then three, and so on.

    A value that needs more memory than the row as priced (`priced_low_bytes`, the low end of its range) saves nothing.
    """
    leanest: dict[str, Choice] = {}
    for outcome in sorted(outcomes, key=lambda each: each.device_low_bytes):
        choice = outcome.reading.choices[0]
        if outcome.device_low_bytes < priced_low_bytes:
            leanest.setdefault(choice.field, choice)
    choices = tuple(leanest.values())
    return [Reading(choices[:count]) for count in range(2, len(choices) + 1)]


# A job has several readings and 512 jobs are kept (`planner.request.job`). Fewer readings would be forgotten before they recur.
@lru_cache(maxsize=2048)
def _stating(job: Job, facts: tuple[tuple[str, Any], ...]) -> Job | None:
    """The job with these training fields stated and its other open fields derived again; None where the job is refused."""
    stated = {
        name: value for name, value in training_document(job.training).items() if name not in job.training.assumed
    }
    try:
        training = resolve_training({**stated, **dict(facts)}, model=job.model, cluster=job.cluster)
    except InvalidInputError:
        return None
    return replace(job, training=training)


def deciding(outcomes: Sequence[Outcome], *, verdict: Verdict) -> list[Reason]:
    """One reason for each fact that decides alone, at its best value.

    Args:
        outcomes: the outcomes of single readings, and of combined ones where no single reading was enough.
        verdict: the verdict on the row as priced. Where that is out of memory, every reading that might fit decides; where it
            is at risk, every reading that fits.
    """
    best: dict[tuple[str, ...], Outcome] = {}
    for outcome in sorted(outcomes, key=lambda each: (each.verdict, each.device_low_bytes)):
        if outcome.verdict < verdict:
            best.setdefault(tuple(choice.field for choice in outcome.reading.choices), outcome)
    order = [*STRATEGY_FACTS, *TRAINING_FACTS]
    found = sorted(best.items(), key=lambda item: (len(item[0]), [order.index(field) for field in item[0]]))
    shown = found if not found or len(found[0][0]) == 1 else found[:1]
    return [_reason(outcome, verdict) for _, outcome in shown]


def _reason(outcome: Outcome, verdict: Verdict) -> Reason:
    choices = outcome.reading.choices
    other = _listed([f"{choice.field} {choice.value}" for choice in choices])
    default = _listed([f"{choice.field} {choice.assumed}" for choice in choices])
    can = "fits" if outcome.verdict == Verdict.FITS else "may fit"
    cannot = "not with" if verdict == Verdict.OOM else "is at risk with"
    which = "which" if len(choices) == 1 else "any of them"
    message = f"it {can} with {other} and {cannot} {default}; the row does not state {which}"
    return {"code": "unstated-fact", "message": message, "hint": f"State {_listed([c.name for c in choices])}."}


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
