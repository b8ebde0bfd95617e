"""How wide the 80 % range of a step's time is, by what the step is bound by: figures that a script took from measured runs. [T-3]

`benchmarks/range_widths.py` compares predicted with measured times of all published runs, each source left out of the fit of
the free constants in turn, and writes `cost_models/step/range_widths.json`. Nothing in that file is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cost_models.step.exposure import Exposure
from cost_models.strategies.strategy import Bools, Codes, Floats
from cost_models.terms import COMMUNICATION, HOST_BOUND

WIDTHS_FILE = Path(__file__).with_name("range_widths.json")
PLANS_APART = 0.10
"""Difference of two plans in their terms (root of the sum of squares, as a share of a step) from which on they have little in common:
what measured pairs err against each other grows up to there and no further."""
LINK_BOUND = 0.15
"""Share of the step that is exposed communication, from which on the links do."""


class Regime(IntEnum):
    """What a step is bound by, and thus what its prediction rests on."""

    COMPUTE = 0
    """Products, attention and memory traffic of dense layers."""
    LINKS = 1
    """Exposed communication inside a node."""
    NETWORK = 2
    """Exposed communication, most of it between nodes."""
    HOST = 3
    """The launching of kernels."""
    EXPERTS = 4
    """Layers of routed experts, whatever takes longest in them."""

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, eq=False)
class RangeWidths:
    """The figures of the file; all are fractions of a time."""

    machine_reference: float
    """80 % half-width of what all plans on one machine have in common, where only reference data of its kind of GPU is known."""
    machine_profiled: float
    """The same where that kind of machine was profiled."""
    factor_R: NDArray[np.float64]
    """By regime, what the half-widths of terms and machine together are multiplied by."""
    plans: float
    """80 % half-width of what two plans on one machine that have little in common err against each other."""

    def machine(self, *, is_profiled: bool) -> float:
        """Half-width of a machine's common offset."""
        return self.machine_profiled if is_profiled else self.machine_reference


def widths_of(document: Mapping[str, object]) -> RangeWidths:
    """The figures of a file's content."""
    machine, factors, plans = document["machine"], document["factors"], document["plans"]
    assert isinstance(machine, Mapping)
    assert isinstance(factors, Mapping)
    assert isinstance(plans, float)
    by_regime = np.array([float(factors[regime.label]) for regime in Regime])
    return RangeWidths(float(machine["reference"]), float(machine["profiled"]), by_regime, plans)


@lru_cache(maxsize=1)
def range_widths() -> RangeWidths:
    """The figures that this release ships."""
    return widths_of(json.loads(WIDTHS_FILE.read_text(encoding="utf-8")))


def regimes(terms_s: Mapping[str, Floats], total_s: Floats, *, exposed: Exposure | None, has_experts: bool) -> Codes:
    """Codes of `Regime`, shape (N,).

    Args:
        terms_s: seconds by term.
        total_s: seconds of the step.
        exposed: which communication leaves its node; None treats all of it as inside.
        has_experts: whether the model has routed experts.
    """
    if has_experts:
        return np.full(len(total_s), Regime.EXPERTS, np.int8)
    inside, between = np.zeros_like(total_s), np.zeros_like(total_s)
    for name in COMMUNICATION:
        crosses: Bools | bool = exposed.crosses[name] if exposed is not None and name in exposed.crosses else False
        between = between + np.where(crosses, terms_s[name], 0.0)
        inside = inside + np.where(crosses, 0.0, terms_s[name])
    linked = np.where(between > inside, Regime.NETWORK, Regime.LINKS)
    found = np.where(inside + between >= LINK_BOUND * total_s, linked, Regime.COMPUTE)
    # A host that is late makes collectives late as well, so that waiting for it comes first.
    return np.where(terms_s["launch"] >= HOST_BOUND * total_s, Regime.HOST, found).astype(np.int8)
