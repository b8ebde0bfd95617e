"""What is believed of the step times of ranked plans, before and after some of them were measured.

The logarithms of all step times are taken as jointly normal. Their means are the predictions. Their spreads are the plans' own 80 %
ranges (EQUATIONS.md, T-3), which the machine and the terms on which both spend time make common to two plans, and beside them what plans
of one machine err against each other (T-4), which two plans share the more, the more alike they are. A measured plan therefore moves
the others as far as they resemble it, which is a correction of every term with shrinkage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import erf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.calibration.residuals import NOMINAL_RESIDUALS
from cost_models.step.range_widths import PLANS_APART, range_widths
from cost_models.terms import TIME_NAMES, TIME_TERMS, Tier

Floats = NDArray[np.float64]
OF_80_PERCENT = 1.2816
"""Half-width of an 80 % interval in standard deviations of a normal distribution."""
REPEAT_FRACTION = 0.005
"""Standard deviation of a measured step time from run to run, as a share: equal runs differ by 0.1 to 1.5 %."""
KNOB_FRACTION = 0.04
"""Standard deviation of what no term tells of a plan, as a share: plans that are predicted alike still differ by this much. With it, 74 %
of the times in the tables of `benchmarks/tuner_replay.py` lie in the 80 % range that is believed of them after any others of their job."""
_LEAST_RANGE = 0.01
"""Half-width of the narrowest range that is believed, as a share."""
_FREEDOM = 4.0
"""Degrees of freedom of a plan's own error: its tails are those of Student's distribution, so that one wild plan moves only its like."""
_ROUNDS = 12
_LAYOUT = ("tp", "pp", "cp", "ep")
_OTHER_LAYOUT = 0.05
"""What a differing degree adds to the distance of two plans, as a share of a step: other code runs."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ranked plan as far as it matters for what to measure next."""

    rank: int
    """Analytic rank, 1 for the first."""
    strategy: Mapping[str, Any]
    step_time_s: float
    range_s: tuple[float, float]
    """Its 80 % range in seconds."""
    terms_s: Mapping[str, float]
    """Seconds by term, which sum to `step_time_s`."""
    tiers: Mapping[str, str]
    """Where each term comes from: "measured", "interpolated", "extrapolated" or "nominal"."""
    device_bytes: float
    """Predicted peak memory of the fullest GPU."""
    tie_group: int = 0

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> Candidate:
        """The candidate of a ranked plan of a plan response."""
        evaluation = plan["evaluation"]
        low, high = evaluation["step_time_range_s"]
        return cls(
            rank=int(plan["rank"]),
            strategy=dict(plan["strategy"]),
            step_time_s=float(evaluation["step_time_s"]),
            range_s=(float(low), float(high)),
            terms_s=dict(evaluation["time_breakdown_s"]),
            tiers=dict(evaluation["provenance"]["terms"]),
            device_bytes=float(evaluation["memory"]["peak_device_bytes"]),
            tie_group=int(plan.get("tie_group", 0)),
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Candidate:
        """What `to_json` wrote."""
        low, high = document["range_s"]
        return cls(**{**document, "range_s": (float(low), float(high))})

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "range_s": list(self.range_s)}


@dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """Normal distribution of the logarithms of the seconds of N plans."""

    mean_N: Floats
    covariance_NN: Floats

    @property
    def deviation(self) -> Floats:
        """Standard deviations, shape (N,)."""
        return np.sqrt(np.maximum(np.diag(self.covariance_NN), 0.0))

    def median_s(self) -> Floats:
        """Expected step times in seconds, shape (N,)."""
        return np.asarray(np.exp(self.mean_N))

    def range_s(self) -> tuple[Floats, Floats]:
        """Ends of the 80 % ranges in seconds, shape (N,) each."""
        half = OF_80_PERCENT * self.deviation
        return np.exp(self.mean_N - half), np.exp(self.mean_N + half)

    def expected_gain(self, best_s: float) -> Floats:
        """Expected share of the best step time that measuring each plan would save, shape (N,)."""
        # The gain of a plan that turns out slower is 0; this is the mean of the rest, in logarithms (Jones, Schonlau and Welch 1998).
        deviation = np.maximum(self.deviation, 1e-12)
        z = (np.log(best_s) - self.mean_N) / deviation
        return np.asarray(deviation * (z * _cumulative(z) + np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)))

    def chance_of_faster(self, limit_s: float, *, among: Sequence[int], seed: int, draws: int = 4000) -> float:
        """Probability that at least one plan of `among` takes less than `limit_s`."""
        if not among:
            return 0.0
        places = np.asarray(among, np.int64)
        values, vectors = np.linalg.eigh(self.covariance_NN[np.ix_(places, places)])
        # Of two plans that are believed to err alike the covariance is singular, which a Cholesky factor could not be taken of.
        spread = vectors * np.sqrt(np.maximum(values, 0.0))
        drawn = np.random.default_rng(seed).standard_normal((draws, len(places))) @ spread.T + self.mean_N[places]
        return float(np.mean(drawn.min(axis=1) < np.log(limit_s)))

    def chance_of_one(self, limit_s: float, place: int) -> float:
        """Probability that the plan at one place takes less than `limit_s`."""
        deviation = max(float(self.deviation[place]), 1e-12)
        return float(_cumulative(np.array([(np.log(limit_s) - self.mean_N[place]) / deviation]))[0])


def believed(
    candidates: Sequence[Candidate], measured_s: Mapping[int, float], *, running: Sequence[int] = ()
) -> Belief:
    """The belief about all plans after some were measured.

    Args:
        candidates: the N plans.
        measured_s: measured seconds by the place of the plan.
        running: places of plans that are being measured. They count as if they turned out as is believed of them, so that nobody
            measures a near-copy of a plan at the same time.
    """
    mean, shared, own = _prior(candidates)
    tried = sorted(measured_s)
    seen = np.log([measured_s[place] for place in tried])
    if tried:
        own = _widened(shared, own, tried, seen - mean[tried])
    # Conditioned once on all that was measured: one after the other would count what no term tells of a plan several times.
    prior = Belief(mean, shared + own)
    belief = _given(prior, tried, seen)
    if not running:
        return belief
    return _given(prior, [*tried, *running], np.concatenate([seen, belief.mean_N[list(running)]]))


def _prior(candidates: Sequence[Candidate]) -> tuple[Floats, Floats, Floats]:
    """Means (N,) of the logarithms, and their covariances (N, N): of what plans share, and of their own errors."""
    total_N = np.array([each.step_time_s for each in candidates])
    widths = {tier.label: tier for tier in Tier}
    figures = range_widths()
    shares_NT = np.array([[each.terms_s[name] for name in TIME_NAMES] for each in candidates]) / total_N[:, None]
    errors_NT = shares_NT * np.array(
        [[NOMINAL_RESIDUALS[t.family][widths[each.tiers[t.name]]] for t in TIME_TERMS] for each in candidates]
    )
    shared = errors_NT @ errors_NT.T + figures.machine_reference**2
    layouts = np.array([[float(each.strategy.get(name, 1)) for name in _LAYOUT] for each in candidates])
    others = (layouts[:, None, :] != layouts[None, :, :]).sum(axis=2)
    apart = ((shares_NT[:, None, :] - shares_NT[None, :, :]) ** 2).sum(axis=2) + (_OTHER_LAYOUT * others) ** 2
    # What two unlike plans err against each other is the difference of two such errors.
    own = (figures.plans / OF_80_PERCENT) ** 2 / 2.0 * np.exp(-0.5 * apart / PLANS_APART**2)
    # The printed range is the spread of what a plan shares with others; what it is made of only says with which.
    printed = np.array([np.log(each.range_s[1] / each.range_s[0]) / 2.0 for each in candidates])
    scale = np.maximum(printed, _LEAST_RANGE) / np.sqrt(np.diag(shared)) / OF_80_PERCENT
    return np.log(total_N), shared * np.outer(scale, scale), own


def _widened(shared: Floats, own: Floats, tried: Sequence[int], shift: Floats) -> Floats:
    """The covariance of own errors, wider around plans that are further off than their own error would let one expect.

    Args:
        shared: covariance of what plans share, shape (N, N).
        own: covariance of their own errors, shape (N, N).
        tried: places of the measured plans.
        shift: measured less predicted logarithm of each of them.
    """
    likeness = own / np.sqrt(np.outer(np.diag(own), np.diag(own)))
    first = np.diag(own)[tried]
    widened = own
    for _ in range(_ROUNDS):
        block = (shared + widened)[np.ix_(tried, tried)] + _noise(len(tried))
        error = widened[np.ix_(tried, tried)] @ np.linalg.solve(block, shift)
        # The mean of the precision's posterior under Student's distribution, by which its tails are fitted again and again.
        excess = np.maximum((_FREEDOM + error**2 / first) / (_FREEDOM + 1.0) - 1.0, 0.0)
        factor = np.sqrt(1.0 + (likeness[:, tried] * excess).max(axis=1))
        widened = own * np.outer(factor, factor)
    return widened


def _given(belief: Belief, tried: Sequence[int], seen: Floats) -> Belief:
    """The belief after the plans at the places `tried` were measured with the logarithms `seen`."""
    if not len(tried):
        return Belief(belief.mean_N, belief.covariance_NN + KNOB_FRACTION**2 * np.eye(len(belief.mean_N)))
    whole, places = belief.covariance_NN, list(tried)
    gain = np.linalg.solve(whole[np.ix_(places, places)] + _noise(len(places)), whole[places]).T
    mean = belief.mean_N + gain @ (seen - belief.mean_N[places])
    left = whole - gain @ whole[places]
    left = (left + left.T) / 2.0 + KNOB_FRACTION**2 * np.eye(len(mean))
    # Of a plan that was measured only the scatter of its repeats is left open.
    mean[places] = seen
    left[places, :] = left[:, places] = 0.0
    left[places, places] = REPEAT_FRACTION**2
    return Belief(mean, left)


def _noise(count: int) -> Floats:
    """Covariance of what is measured of a plan beside its own smooth error, shape (count, count)."""
    return (REPEAT_FRACTION**2 + KNOB_FRACTION**2) * np.eye(count)


def _cumulative(z: Floats) -> Floats:
    """Cumulative normal distribution."""
    return np.array([0.5 * (1.0 + erf(each / sqrt(2.0))) for each in z])
