"""The family of errors: one root, leaves by cause.

A code is stable and kebab-case; a message states what is wrong, with the value; a hint says what to do. HTTP statuses and exit
codes are mapped from these classes in `app.errors` and `app.cli`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with an input: where, what, and what to do about it."""

    pointer: str
    """JSON pointer (RFC 6901) into the document that was given, such as `/model/num_layers`; "" is the whole
    document."""
    message: str
    hint: str = ""
    code: str = "invalid-field"


class MeshwrightError(Exception):
    """Root of every error that a user can meet."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", context: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.context = dict(context or {})


class InvalidInputError(MeshwrightError):
    """The request breaks a rule that can be stated without a cost model; `problems` lists every rule that it breaks."""

    code = "invalid-input"

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems
        shown = "; ".join(f"{p.pointer or '/'}: {p.message}" for p in problems[:3])
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        super().__init__(shown + more, hint=problems[0].hint, context={"count": len(problems)})
        self.problems = tuple(problems)


class NotModelledError(InvalidInputError):
    """The input is understood and refused on purpose: there is no cost model of it here."""

    code = "not-modelled"


class CalibrationError(MeshwrightError):
    """A calibration is missing, unreadable, damaged, or of another schema version."""

    code = "calibration"


class NotExpressibleError(MeshwrightError):
    """A plan uses a feature that the target framework, or its version, cannot express."""

    code = "plan-not-expressible"


class SearchBudgetError(MeshwrightError):
    """A search was asked for more than its limits allow."""

    code = "search-budget"


class MeasurementError(MeshwrightError):
    """A benchmark or trial could not be completed."""

    code = "measurement"
