"""How corrections change predictions: the named terms of a step, its range, and the bytes of a stage. [T-6] [M-21]

A term is multiplied by its factor after everything that hides it is accounted for, so that a breakdown still sums to its total.
The wait for the host is the exception: what is corrected is the host's time, and the device waits for what its own work leaves of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np

from cost_models.constants import UNMODELLED_RANGE
from cost_models.corrections.records import Correction, Quantity, Scope
from cost_models.strategies.strategy import Floats
from cost_models.strategies.tensors import summed
from cost_models.terms import BEHIND_HOST, HOST_BOUND, MEMORY_NAMES, TIME_NAMES

UNLIKE = 0.10
"""Share of a plan's total beyond what any measured run had of the same terms, from which on its range is as wide as before: such a
plan tells mostly of terms that nobody has measured."""


class Corrected(NamedTuple):
    """A corrected step."""

    terms_s: dict[str, Floats]
    """Seconds by term; they sum to `total_s`."""
    total_s: Floats
    range_factor: Floats
    """What the logarithmic half-widths of the uncorrected range are multiplied by, 0...1 or more."""


@dataclass(frozen=True, eq=False)
class InForce:
    """The corrections of one scope, ready to be applied. Compared by identity: cost models keep what they computed for a job."""

    listed: tuple[Correction, ...] = ()
    unmatched: bool = False
    """Whether there are corrections, but none for this scope."""
    factors: Mapping[str, float] = field(init=False)
    """By term, of those in force."""

    def __post_init__(self) -> None:
        assert len({each.scope for each in self.listed}) <= 1, "corrections of several scopes"
        object.__setattr__(self, "factors", {each.term: each.factor for each in self.listed if each.in_force})

    def __bool__(self) -> bool:
        return bool(self.listed)

    @cached_property
    def changes_time(self) -> bool:
        """Whether any step takes another time."""
        return any(name in self.factors for name in TIME_NAMES)

    @cached_property
    def changes_memory(self) -> bool:
        """Whether any stage holds another number of bytes."""
        return any(name in self.factors for name in MEMORY_NAMES)

    @cached_property
    def _seen(self) -> Mapping[Quantity, Mapping[str, Correction]]:
        """Corrections by term, of each quantity."""
        quantities: tuple[Quantity, ...] = get_args(Quantity)
        return {one: {each.term: each for each in self.listed if each.quantity == one} for one in quantities}

    @cached_property
    def least_time_factor(self) -> float:
        """No corrected step is shorter than this times the uncorrected one; a lower bound stays one if multiplied by it."""
        # Terms that no factor is known for count with 1. The wait for the host takes the factors of what it lies behind in some
        # proportion, so that the least of all still bounds their sum.
        return min([1.0, *(self.factors[name] for name in TIME_NAMES if name in self.factors)])

    @cached_property
    def least_memory_factor(self) -> float:
        """The same for allocated bytes, and for what grows with them."""
        return min([1.0, *(self.factors[name] for name in MEMORY_NAMES if name in self.factors)])

    def of_time(self, terms_s: Mapping[str, Floats]) -> tuple[dict[str, Floats], Floats]:
        """Corrected seconds by term, and their sum, in the shape of the terms. [T-6]

        Args:
            terms_s: uncorrected seconds by each name of TIME_NAMES.
        """
        found = {name: terms_s[name] * self.factors.get(name, 1.0) for name in TIME_NAMES}
        found["launch"] = self._wait_s(terms_s, found)
        return found, summed(found.values())

    def _wait_s(self, before: Mapping[str, Floats], after: Mapping[str, Floats]) -> Floats:
        """Seconds in which the device waits for its host, in the shape of the terms."""
        waits = before["launch"]
        total = summed(before[name] for name in TIME_NAMES)
        work, new_work = (summed(each[name] for name in BEHIND_HOST) for each in (before, after))
        # Where the device waits, host and device take equally long. Where it hardly does, how much longer the host could take
        # unnoticed is not known, so that only as much of the difference counts as the wait is of a host-bound step's.
        paced = np.minimum(waits / (HOST_BOUND * np.where(total > 0, total, 1.0)), 1.0)
        host = self.factors.get("launch", 1.0) * (work + waits)
        return np.asarray(np.maximum(waits + paced * (host - waits - new_work), 0.0))

    def of_bytes(self, name: str, value: Floats) -> Floats:
        """Corrected bytes of one memory term. [M-21]"""
        factor = self.factors.get(name)
        return value if factor is None else np.asarray(value * factor)

    def range_factor(self, terms: Mapping[str, Floats], total: Floats, quantity: Quantity = "time") -> Floats:
        """What half-widths of ranges are multiplied by, in the shape of the terms.

        Args:
            terms: uncorrected seconds or bytes by term.
            total: their sum.
            quantity: which of the two they are.
        """
        seen = self._seen[quantity]
        if not seen or any(each.kept and not each.enabled for each in seen.values()):
            # The factor was found with all that is kept in place; without a part of it, it says nothing.
            return np.ones_like(total)
        learnt = next(iter(seen.values())).range_factor
        share, whole = np.zeros_like(total), np.where(total > 0, total, 1.0)
        for name, value in terms.items():
            known = seen[name].largest_share if name in seen else 0.0
            share += np.maximum(value / whole - known, 0.0)
        unlike = np.minimum(share / UNLIKE, 1.0)
        # Variances are mixed, as half-widths that are independent of each other are.
        return np.asarray(np.sqrt(learnt**2 + (max(learnt, 1.0) ** 2 - learnt**2) * unlike))


NO_CORRECTIONS = InForce()


class CorrectionSet:
    """Corrections of several scopes, as somebody gave them; the same scope always gets the same object of those in force."""

    def __init__(self, listed: Iterable[Correction], *, asked_for: bool = True) -> None:
        """`asked_for`: whether somebody gave them for the job at hand, and is told where none of them is of its scope."""
        self.listed = tuple(listed)
        self._asked_for = asked_for
        self._by_scope: dict[Scope, InForce] = {}

    def of(self, scope: Scope) -> InForce:
        """The corrections of this scope."""
        if not self.listed:
            return NO_CORRECTIONS
        if scope not in self._by_scope:
            own = tuple(of_scope(self.listed, scope))
            self._by_scope[scope] = InForce(own, unmatched=not own) if own or self._asked_for else NO_CORRECTIONS
        return self._by_scope[scope]


def corrected_range_s(
    range_s: tuple[Floats, Floats], total_s: Floats, corrected_s: Floats, factor: Floats
) -> tuple[Floats, Floats]:
    """The 80 % range of a corrected step, in seconds, shape (N,) each. [T-6]

    Args:
        range_s: low and high end of the uncorrected range.
        total_s: seconds of the uncorrected step.
        corrected_s: those of the corrected one.
        factor: what `InForce.range_factor` says of the step.
    """
    below, above = (narrowed(np.abs(np.log(end / total_s)), factor) for end in range_s)
    return corrected_s * np.exp(-below), corrected_s * np.exp(above)


def narrowed(half_width: Floats, factor: Floats, *, of: Floats | float = 1.0) -> Floats:
    """A half-width that was learnt, shape (N,): never below what repeats of one plan differ by, unless it was before.

    Args:
        half_width: before, as a logarithm or in seconds.
        factor: what it is multiplied by.
        of: seconds of the step where the half-width is in seconds.
    """
    return np.asarray(np.maximum(half_width * factor, np.minimum(half_width, UNMODELLED_RANGE.low * of)))


def corrected(
    terms_s: Mapping[str, Floats | float], corrections: Sequence[Correction] | InForce, *, scope: Scope | None = None
) -> Corrected:
    """A step with these corrections, each term shape (N,) or a number. [T-6]

    Args:
        terms_s: uncorrected seconds by name of TIME_NAMES; absent names are zero.
        corrections: of one scope, unless `scope` picks one; those that are not kept or are switched off change nothing.
        scope: whose corrections are applied; None applies all.
    """
    if not isinstance(corrections, InForce):
        corrections = InForce(tuple(of_scope(corrections, scope)))
    shape = np.broadcast_shapes(*(np.shape(value) for value in terms_s.values()))
    arrays = {name: np.broadcast_to(np.asarray(terms_s.get(name, 0.0), np.float64), shape) for name in TIME_NAMES}
    terms, total = corrections.of_time(arrays)
    return Corrected(terms, total, corrections.range_factor(arrays, summed(arrays.values())))


def of_scope(corrections: Iterable[Correction], scope: Scope | None) -> list[Correction]:
    """The corrections that hold for a scope, in their order."""
    return [each for each in corrections if scope is None or each.scope == scope]
