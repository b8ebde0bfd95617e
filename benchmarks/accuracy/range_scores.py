"""From measured runs to the widths of ranges: scores of rows, quantiles over sources, and what they cover of a source left out.

    score = |log(measured / predicted)| / sqrt(own half-width^2 + machine half-width^2)

A factor is the 80th percentile of the scores of its regime, every source counting as one and the rows of all other regimes
together as one more, so that a regime that few sources have is not judged by these alone (split conformal prediction with sources
in place of rows: runs of one source err together, and a new user is a new source). Only rows that state what matters are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.figures import ranking_groups
from benchmarks.accuracy.measured_rows import Floats, Scored
from cost_models.step.exposure import exposure
from cost_models.step.host_range import host_range
from cost_models.step.range_widths import PLANS_APART, RangeWidths, Regime, range_widths, regimes
from cost_models.step.ranges import differences, own_half_widths
from cost_models.step.total import step_time
from cost_models.terms import TIME_NAMES, Tier
from planner.request.job import resolve_job, resolve_pooled_job
from planner.schemas.strategy import StrategyInput
from planner.strategies.on_pools import resolve_on_pools

COVERED = 0.80
"""Share of runs that a range is meant to hold."""
LEAST_APART = 0.02
"""Pairs of plans that differ by less say nothing of what differing costs: their difference is that of two repeats."""


@dataclass(frozen=True, eq=False)
class RangeRows:
    """Timed rows with what the width of their ranges is made of, arrays of shape (N,)."""

    source: NDArray[np.str_]
    machine: NDArray[np.str_]
    """Source and GPU."""
    complete: NDArray[np.bool_]
    regime: NDArray[np.int64]
    own_low: Floats
    """Half-width of what the plan's own terms leave open below the prediction."""
    own_high: Floats
    """The same above."""
    profiled: NDArray[np.bool_]
    open_low: Floats
    """How far below the prediction the facts reach that the row leaves open, as a logarithm."""
    open_high: Floats
    error: Floats
    """log(measured / predicted)."""

    def take(self, which: NDArray[np.bool_]) -> Self:
        """These rows."""
        return type(self)(**{each.name: getattr(self, each.name)[which] for each in fields(self)})


def range_rows(scored: Scored, *, calibration: str | None = None) -> RangeRows:
    """The timed rows of a table.

    Args:
        scored: rows with their evaluations, made with the constants of this moment.
        calibration: the calibration that the table was priced with in place of the rows' own.
    """
    timed, present = scored.take(scored.timed), range_widths()
    found: list[dict[str, Any]] = []
    for index, row in enumerate(timed.rows):
        pooled = resolve_pooled_job(row, calibration=calibration)
        job = pooled.jobs[0]
        given = StrategyInput.model_validate(row["strategy"])
        strategies = resolve_on_pools([pooled], [given]).strategies
        assert strategies is not None, row["id"]
        time, exposed = step_time(job, strategies), exposure(job, strategies)
        host = host_range(job, strategies, time.terms_s)
        own_low, own_high = (
            float(side[0])
            for side in own_half_widths(
                job.calibration, time.terms_s, time.tiers, time.total_s, exposed=exposed, host=host
            )
        )
        has_experts = job.model.moe is not None
        regime = int(regimes(time.terms_s, time.total_s, exposed=exposed, has_experts=has_experts)[0])
        machine = present.machine(is_profiled=job.calibration.is_profiled)
        low, high = (present.factor_R[regime] * math.hypot(own, machine) for own in (own_low, own_high))
        predicted_s, error = timed.predicted_s[index], math.log(timed.measured_s[index] / timed.predicted_s[index])
        found.append(
            {
                "source": str(timed.source[index]),
                "machine": f"{timed.source[index]} {job.cluster.gpu.name}",
                "complete": row.get("complete") is True,
                "regime": regime,
                "own_low": own_low,
                "own_high": own_high,
                "profiled": job.calibration.is_profiled,
                # The answer's range holds the open facts in quadrature with the model's own half-width.
                "open_low": math.sqrt(max(math.log(predicted_s / timed.low_s[index]) ** 2 - low**2, 0.0)),
                "open_high": math.sqrt(max(math.log(timed.high_s[index] / predicted_s) ** 2 - high**2, 0.0)),
                "error": error,
            }
        )
    return RangeRows(**{name: np.array([each[name] for each in found]) for name in found[0]})


def joined(tables: Sequence[RangeRows]) -> RangeRows:
    """All rows of several tables."""
    return RangeRows(**{f.name: np.concatenate([getattr(each, f.name) for each in tables]) for f in fields(RangeRows)})


def quantile(values: Floats, weights: Floats, *, share: float = COVERED) -> float:
    """The smallest value at which the weights of the values up to it reach this share of all."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share - 1e-12)])


def equal_weights(groups: NDArray[Any]) -> Floats:
    """Weights by which every group counts as one, shape (N,)."""
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / counts[inverse.reshape(-1)])


def machine_half_width(rows: RangeRows) -> float:
    """80th percentile over sources of how far a machine's rows lie off in common: the median error of each machine's, averaged over
    the machines of a source. Between the few sources it is interpolated.
    """
    medians = []
    for source in np.unique(rows.source):
        mine = rows.take(rows.source == source)
        each = [abs(np.median(mine.error[mine.machine == machine])) for machine in np.unique(mine.machine)]
        medians.append(float(np.mean(each)))
    return float(np.quantile(medians, COVERED))


def factors(rows: RangeRows, *, machine: tuple[float, float]) -> Floats:
    """By regime, the 80th percentile of the scores; `machine` is its half-width by reference data and profiled."""
    low, high = base_half_widths(rows, machine=machine)
    scores = np.abs(rows.error) / np.where(rows.error < 0, low, high)
    found = np.ones(len(Regime))
    for regime in Regime:
        mine = rows.regime == regime
        weights = np.zeros(len(scores))
        weights[mine] = equal_weights(rows.source[mine])
        weights[~mine] = equal_weights(np.zeros((~mine).sum()))
        found[regime] = quantile(scores, weights)
    return found


def base_half_widths(rows: RangeRows, *, machine: tuple[float, float]) -> tuple[Floats, Floats]:
    """Half-widths below and above before the regime's factor, shape (N,) each."""
    shared = np.where(rows.profiled, machine[1], machine[0])
    return np.hypot(rows.own_low, shared), np.hypot(rows.own_high, shared)


def plans_half_width(tables: Mapping[str, Scored]) -> float:
    """80th percentile of how much two plans of one ranking group err against each other beyond what their terms leave open, over what
    they do not share (`ranges.differences`). Every source counts as one.
    """
    codes = {tier.label: tier.value for tier in Tier}
    scores: list[float] = []
    sources: list[str] = []
    for source, scored in tables.items():
        for group in ranking_groups(scored).values():
            prices = resolve_job(group.rows[0]).calibration
            terms = {n: np.array([a["time_breakdown_s"][n] for a in group.answers]) for n in TIME_NAMES}
            tiers = {n: np.array([codes[a["provenance"]["terms"][n]] for a in group.answers]) for n in TIME_NAMES}
            error = np.log(group.measured_s / group.predicted_s)
            for leader in range(1, len(error)):
                pairs = differences(prices, terms, tiers, leader=leader)
                mean_s = (group.predicted_s + group.predicted_s[leader]) / 2.0
                kept = pairs.unlike_s >= LEAST_APART / PLANS_APART * mean_s
                kept[leader:] = False  # every pair once
                beyond = np.maximum((error - error[leader]) ** 2 - (pairs.terms_s / mean_s) ** 2, 0.0)[kept]
                scores += (np.sqrt(beyond) / (pairs.unlike_s / mean_s)[kept]).tolist()
                sources += [source] * int(kept.sum())
    return quantile(np.array(scores), equal_weights(np.array(sources)))


def fitted(reference: RangeRows, profiled: RangeRows, *, plans: float) -> RangeWidths:
    """The widths that these rows ask for."""
    kept, own = reference.take(reference.complete), profiled.take(profiled.complete)
    machine = machine_half_width(kept), machine_half_width(own)
    return RangeWidths(*machine, factors(kept, machine=machine), plans)


@dataclass(frozen=True, slots=True)
class Covered:
    """What ranges hold of some rows."""

    rows: int
    inside: float
    """Share of the measured times inside."""
    width: float
    """Median of high over low."""


def half_widths(rows: RangeRows, widths: RangeWidths) -> tuple[Floats, Floats]:
    """Half-widths below and above the prediction as logarithms, shape (N,) each."""
    machine = widths.machine_reference, widths.machine_profiled
    low, high = (widths.factor_R[rows.regime] * base for base in base_half_widths(rows, machine=machine))
    return np.hypot(low, rows.open_low), np.hypot(high, rows.open_high)


def covered(rows: RangeRows, widths: RangeWidths) -> Covered:
    """What the ranges of these widths hold of the rows."""
    low, high = half_widths(rows, widths)
    inside = (-low <= rows.error) & (rows.error <= high)
    return Covered(len(inside), float(inside.mean()), float(np.exp(np.median(low + high))))
