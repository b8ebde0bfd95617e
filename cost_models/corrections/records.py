"""Measured runs beside their predictions, and the corrections that they lead to, as plain records in SI units."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from cost_models.terms import MEMORY_NAMES, TIME_NAMES

Quantity = Literal["time", "memory"]


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """What a correction holds for. Predictions of another scope rest on other kernels, or on other measurements."""

    framework: str
    model_impl: str
    """Whose modules run, in the contract's words."""
    gpu: str
    precision: str = "bf16"
    calibration: str = ""
    """What the uncorrected predictions rest on: a factor against one calibration says nothing of another's predictions."""


@dataclass(frozen=True, eq=False)
class Measured:
    """One measured run, with what was predicted for it before any correction."""

    scope: Scope
    terms_s: Mapping[str, float]
    """Predicted seconds by name of TIME_NAMES; names that are absent are zero."""
    step_time_s: float | None = None
    """Measured median seconds of a step."""
    range_s: tuple[float, float] | None = None
    """Predicted 80 % range of the step."""
    measured_terms_s: Mapping[str, float] | None = None
    """Seconds by term of one traced step, where there was one."""
    memory_bytes: Mapping[str, float] = field(default_factory=dict)
    """Predicted bytes by name of MEMORY_NAMES, of the fullest stage at its peak."""
    allocated_bytes: float | None = None
    """Measured peak of the allocator, of the fullest rank."""
    widths: Mapping[str, float] = field(default_factory=dict)
    """Relative 80 % half-width of each time term's prediction ([T-3])."""
    common_width: float = 0.0
    """Relative 80 % half-width of what all plans on one machine have in common ([T-3])."""
    source: str = ""
    """Id of the observation or trial."""

    @property
    def plan(self) -> tuple[float, ...]:
        """What tells plans apart: runs whose every term is predicted alike are repeats of one plan."""
        # To nine digits, since the last bits of a prediction may depend on the batch in which it was made.
        predicted = [self.terms_s.get(name, 0.0) for name in TIME_NAMES]
        predicted += [self.memory_bytes.get(name, 0.0) for name in MEMORY_NAMES]
        return tuple(float(f"{value:.9g}") for value in predicted)


@dataclass(frozen=True)
class Correction:
    """What measured runs say of one term within one scope."""

    term: str
    """A name of TIME_NAMES or MEMORY_NAMES."""
    factor: float
    """What the prediction of the term is to be multiplied by."""
    kept: bool
    """Whether runs that were left out are clearly better predicted with the factors that are kept than without."""
    scope: Scope
    trials: int
    """Measured runs that the factor rests on."""
    error_before: float | None
    """Mean error of the runs, as a fraction, each predicted without it and its repeats and without this factor; null where no
    run could be left out."""
    error_after: float | None
    """The same with this factor."""
    reason: str
    """Why it is kept or not, in one sentence."""
    sources: tuple[str, ...] = ()
    enabled: bool = True
    """False where its owner switched it off."""
    largest_share: float = 1.0
    """Largest share of a measured run's total that the term was predicted to take."""
    range_factor: float = 1.0
    """What the ranges of this scope's predictions are multiplied by where a plan resembles the measured ones."""

    @property
    def quantity(self) -> Quantity:
        """Whether the term is a part of a step's time or of a stage's memory."""
        return "time" if self.term in TIME_NAMES else "memory"

    @property
    def in_force(self) -> bool:
        """Whether the factor is applied."""
        return self.kept and self.enabled

    @cached_property
    def id(self) -> str:
        """The same for the same term and scope, however often it is fitted anew."""
        scope = self.scope
        named = (scope.framework, scope.model_impl, scope.gpu, scope.precision, scope.calibration, self.term)
        return "corr-" + hashlib.sha256("\n".join(named).encode()).hexdigest()[:16]
