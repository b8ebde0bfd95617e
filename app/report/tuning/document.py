"""A tuning as its readers need it: the document that `meshwright tune --json` prints, checked where a table or a figure rests on it.

Nothing is computed here but the differences between what was predicted and what was measured, so that a tuning of any release can be
read. What a document says besides is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from cost_models.inputs.fields import Count, CountOrZero, validated

Json = Mapping[str, Any]
LARGEST = 1e18
"""Largest number of seconds or bytes: above it sums and ratios leave what doubles hold."""
_MOST_ENTRIES = 10_000
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "vpp", "zero", "zero_shard_size", "micro_batch_size", "recompute_num_layers")

OPEN = ("queued", "running")
"""States of a tuning, and of a trial, that has not ended."""

Amount = Annotated[float, Field(strict=True, gt=0, le=LARGEST, allow_inf_nan=False)]
AmountOrZero = Annotated[float, Field(strict=True, ge=0, le=LARGEST, allow_inf_nan=False)]
# A trial that ended before it held anything may tell a peak of 0, which is nothing to compare with.
Known = Annotated[Amount | None, BeforeValidator(lambda value: None if value == 0 else value)]
Fraction = Annotated[float, Field(strict=True, ge=-1, le=LARGEST, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True, max_length=10_000)]


# A strategy is shown, not priced: only what a cell counts with has to be a number.
def _shown_strategy(strategy: dict[str, Any]) -> dict[str, Any]:
    # A cell compares them with 1; whatever else a strategy says is only passed on.
    for name in _DEGREES:
        value = strategy.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ValueError(f"{name} is not a whole number")
    again = strategy.get("recompute") or "none"
    if not isinstance(again, str):
        raise ValueError(f"recompute is no name but {type(again).__name__}")  # noqa: TRY004 - Pydantic reports this one
    return strategy


def _rising(range_s: list[float]) -> list[float]:
    if range_s[0] > range_s[1]:
        raise ValueError("the range falls")
    return range_s


Strategy = Annotated[dict[str, Any], AfterValidator(_shown_strategy)]
Range = Annotated[list[Amount], Field(min_length=2, max_length=2), AfterValidator(_rising)]


class _Part(BaseModel):
    # A later release may say more, and this page must still open.
    model_config = ConfigDict(extra="ignore", frozen=True)


class TunedTrial(_Part):
    """One trial: what was predicted of its plan, and how it ended."""

    number: CountOrZero
    rank: Count | None = None
    """Rank of the plan before anything was measured."""
    strategy: Strategy
    status: Text
    reason: Text | None = None
    step_time_s: Amount | None = None
    peak_allocated_bytes: Known = None
    predicted_step_time_s: Amount | None = None
    predicted_step_time_range_s: Range | None = None
    predicted_peak_allocated_bytes: Amount | None = None
    predicted_terms_s: dict[str, AmountOrZero] | None = None
    corrected_step_time_s: Amount | None = None
    """Predicted before the trial, with what earlier ones had taught."""
    terms_s: dict[str, AmountOrZero] | None = None
    took_s: AmountOrZero | None = None
    gpu_seconds: AmountOrZero | None = None
    started_at: Text | None = None
    record: dict[str, Any] | None = None

    @property
    def is_measured(self) -> bool:
        return self.step_time_s is not None

    @property
    def is_open(self) -> bool:
        """Whether a service has yet to hear how it ended."""
        return self.status in OPEN

    @property
    def error_fraction(self) -> float | None:
        """How much longer the predicted step is than the measured one, as a share of the latter; negative where it is shorter."""
        return _error(self.predicted_step_time_s, self.step_time_s)

    @property
    def corrected_error_fraction(self) -> float | None:
        """The same of the corrected prediction."""
        return _error(self.corrected_step_time_s, self.step_time_s)

    @property
    def memory_error_fraction(self) -> float | None:
        """The same of allocated memory."""
        return _error(self.predicted_peak_allocated_bytes, self.peak_allocated_bytes)

    @property
    def is_in_range(self) -> bool | None:
        """Whether the measured step lies inside the predicted range; None where either is missing."""
        if self.step_time_s is None or self.predicted_step_time_range_s is None:
            return None
        low, high = self.predicted_step_time_range_s
        return low <= self.step_time_s <= high


class Best(_Part):
    """The fastest plan that was measured."""

    strategy: Strategy
    rank: Count | None = None
    step_time_s: Amount
    gain_fraction: Fraction | None = None
    """Share of the step of the plan that was predicted to be the fastest which it saves; None where that one was not measured."""


class Learnt(_Part):
    """A correction of one term."""

    term: Text
    factor: Amount
    kept: bool
    trials: CountOrZero | None = None
    error_before: AmountOrZero | None = None
    """Median error of trials that were left out, without it, as a share."""
    error_after: AmountOrZero | None = None
    """The same with it."""
    reason: Text | None = None
    enabled: bool = True
    framework: Text | None = None
    model_impl: Text | None = None
    gpu: Text | None = None


class Ranked(_Part):
    """A plan before and after the tuning."""

    strategy: Strategy
    rank_before: Count
    rank_after: Count | None = None
    """None where a trial showed that it does not run."""
    predicted_step_time_s: Amount
    corrected_step_time_s: Amount | None = None
    corrected_range_s: Range | None = None
    measured_step_time_s: Amount | None = None


class Limits(_Part):
    """What the tuning might spend; None is no limit."""

    budget_s: AmountOrZero | None = None
    max_trials: CountOrZero | None = None
    gpu_hours: AmountOrZero | None = None


class Used(_Part):
    """What it spent."""

    seconds: AmountOrZero = 0.0
    trials: CountOrZero = 0
    gpu_hours: AmountOrZero = 0.0


class Stopped(_Part):
    """Why no further trial was made."""

    reason: Text
    message: Text = ""


class Next(_Part):
    """A plan that would be worth measuring."""

    rank: Count | None = None
    strategy: Strategy
    why: Text


class Tuning(_Part):
    """A tuning."""

    id: Text | None = None
    status: Text = ""
    created_at: Text = ""
    product_version: Text = ""
    request: dict[str, Any] | None = None
    """The plan request with every default; None where a service has not planned it yet."""
    backend: Text = ""
    trials: Annotated[list[TunedTrial], Field(max_length=_MOST_ENTRIES)]
    best: Best | None = None
    corrections: Annotated[list[Learnt], Field(max_length=_MOST_ENTRIES)] = []
    ranking: Annotated[list[Ranked], Field(max_length=_MOST_ENTRIES)] = []
    limits: Limits = Limits()
    used: Used = Used()
    stopped: Stopped | None = None
    next: Annotated[list[Next], Field(max_length=_MOST_ENTRIES)] = []
    knobs: dict[str, Any] | None = None
    warnings: Annotated[list[Text], Field(max_length=_MOST_ENTRIES)] = []

    @property
    def measured(self) -> list[TunedTrial]:
        """Trials whose steps were measured, the fastest first."""
        # The order in which they were made says nothing of the plans; their number tells it.
        return sorted((each for each in self.trials if each.is_measured), key=lambda each: each.step_time_s or 0.0)

    @property
    def failed(self) -> list[TunedTrial]:
        """Trials of which no step was measured, in the order in which they were made."""
        open_or_given_up = (*OPEN, "cancelled")
        return [each for each in self.trials if not each.is_measured and each.status not in open_or_given_up]

    @property
    def open(self) -> list[TunedTrial]:
        """Trials that have not ended."""
        return [each for each in self.trials if each.is_open]


def is_tuning(document: Json) -> bool:
    """Whether a document is a tuning rather than a plan response or an evaluation."""
    # A plan response of a later release might well tell trials, too.
    return "trials" in document and "plans" not in document


def read_tuning(document: Json) -> Tuning:
    """The tuning that a parsed JSON document is.

    Raises:
        cost_models.errors.InvalidInputError: it is not, or was changed by hand; each problem names its field.
    """
    return validated(Tuning, document, pointer="")


def _error(predicted: float | None, measured: float | None) -> float | None:
    # Of the measured value, as on the pages about accuracy.
    return None if predicted is None or measured is None else predicted / measured - 1.0
