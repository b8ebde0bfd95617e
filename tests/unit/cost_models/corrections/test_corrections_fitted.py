"""Corrections from runs whose truth is known: factors found again, chance and wild runs resisted, the prior weighed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from cost_models.constants import UNMODELLED_RANGE
from cost_models.corrections import Measured, Scope, corrected, fit_corrections
from cost_models.corrections.estimate import Problem, totals
from cost_models.corrections.fit import Recipe
from cost_models.terms import BEHIND_HOST, TIME_NAMES

SCOPE = Scope("torchtitan", "native", "H200-SXM-141GB")
RNG = np.random.default_rng(18)
SHARES = [dict(zip(("gemm", "attention", "optimizer"), each, strict=True)) for each in RNG.dirichlet([3, 2, 1], 12)]


def run(terms_s: Mapping[str, float], measured_s: float, **fields: object) -> Measured:
    total = sum(terms_s.values())
    return Measured(SCOPE, terms_s, measured_s, (total / 1.2, total * 1.2), **fields)  # type: ignore[arg-type]


def kept(runs: list[Measured]) -> dict[str, float]:
    return {each.term: each.factor for each in fit_corrections(runs) if each.kept}


def test_factors_of_known_runs_are_found_again() -> None:
    """Products take 1.25 times as long as predicted, the rest is right."""
    runs = [run(s, 1.25 * s["gemm"] + s["attention"] + s["optimizer"]) for s in SHARES]
    found = kept(runs)
    assert found["gemm"] == pytest.approx(1.25, rel=0.03)
    assert all(abs(math.log(factor)) < 0.05 for term, factor in found.items() if term != "gemm")


def test_a_host_that_is_faster_than_predicted_is_told_from_slow_products() -> None:
    """The host needs 0.8 of its time, products 1.1 of theirs. Half of the runs wait for the host, half do not."""
    rows = [{"gemm": g, "launch": w, "dp_comm": 2.0} for g, w in product((4.0, 5.0, 6.0, 8.0), (0.0, 5.0))]
    # Where the device waits, it works for 0.8 of the host's time, which is that of products and wait together.
    runs = [run(r, (0.8 * (r["gemm"] + r["launch"]) if r["launch"] else 1.1 * r["gemm"]) + 2.0) for r in rows]
    found = kept(runs)
    assert found["launch"] == pytest.approx(0.8, rel=0.03)
    assert found["gemm"] == pytest.approx(1.1, rel=0.03)


def test_one_wild_run_moves_nothing_much() -> None:
    runs = [run(s, 1.25 * s["gemm"] + s["attention"] + s["optimizer"]) for s in SHARES]
    wild = run(SHARES[0] | {"loss": 0.01}, 50.0)
    assert kept([*runs, wild])["gemm"] == pytest.approx(kept(runs)["gemm"], rel=0.02)


def test_chance_is_not_learnt() -> None:
    """Times are those predicted but for 2 % of chance, which no term explains: what is kept moves no step by as much."""
    runs = [run(s, sum(s.values()) * math.exp(0.02 * (-1) ** n)) for n, s in enumerate(SHARES)]
    corrections = fit_corrections(runs)
    moved = [abs(math.log(corrected(s, corrections).total_s / sum(s.values()))) for s in SHARES]
    assert max(moved) < 0.02


def test_a_single_plan_keeps_nothing_however_often_it_was_run() -> None:
    found = fit_corrections([run(SHARES[0], 1.4, source=str(n)) for n in range(5)])
    assert [each.kept for each in found] == [False] * 3
    assert all(each.error_after is None and "one plan" in each.reason for each in found)


def test_two_plans_keep_a_factor_that_carries_over_from_one_to_the_other() -> None:
    found = fit_corrections([run({"gemm": 1.0}, 1.2), run({"gemm": 2.0}, 2.4)])
    assert [(each.term, each.kept) for each in found] == [("gemm", True)]
    assert found[0].error_before == pytest.approx(math.log(1.2))
    assert found[0].error_after is not None
    assert found[0].error_after < 0.1


def test_repeats_of_a_plan_are_left_out_together() -> None:
    """Five repeats at 1.3 and one other plan at 1: either predicted from the other alone errs more with a factor than without."""
    runs = [run({"gemm": 1.0}, 1.3, source=str(n)) for n in range(5)] + [run({"gemm": 2.0}, 2.0)]
    (only,) = fit_corrections(runs)
    assert not only.kept
    assert only.error_before == pytest.approx(math.log(1.3) / 2)


def test_the_factor_is_the_mode_of_prior_and_runs() -> None:
    """One term, prior half-width 10 %, four plans at 1.1: the least of the objective, found on a grid."""
    prior, noise, ratio, n = 0.10 / 1.2816, UNMODELLED_RANGE.value / 1.2816, math.log(1.1), 4
    grid = np.linspace(-0.1, 0.2, 300_001)
    objective = grid**2 / (2 * prior**2) + n * 2.5 * np.log1p(((ratio - grid) / noise) ** 2 / 4)
    expected = math.exp(grid[np.argmin(objective)])
    runs = [run({"gemm": 1.0 + k}, 1.1 * (1.0 + k), widths={"gemm": 0.10}) for k in range(n)]
    assert kept(runs)["gemm"] == pytest.approx(expected, rel=1e-4)


def test_a_traced_step_tells_terms_apart_that_totals_do_not() -> None:
    """All plans have the same shares, so totals tell only the sum; traces show that attention alone is slow."""
    scales = (1.0, 2.0, 3.0, 4.0)
    runs = [
        run({"gemm": 6.0 * s, "attention": 4.0 * s}, 12.0 * s, measured_terms_s={"gemm": 6.0 * s, "attention": 6.0 * s})
        for s in scales
    ]
    blind = [run({"gemm": 6.0 * s, "attention": 4.0 * s}, 12.0 * s) for s in scales]
    found, without = ({each.term: each.factor for each in fit_corrections(some)} for some in (runs, blind))
    assert found["attention"] / found["gemm"] > 1.15
    assert found["attention"] / found["gemm"] > 1.05 * without["attention"] / without["gemm"]


def test_a_traced_collective_teaches_nothing_of_its_time() -> None:
    """Its kernel waits for the other rank's host as well: 4.5 s of traced reduction beside 0.5 s predicted, in steps that are as predicted."""
    seconds = [{"gemm": 6.0 * s, "dp_comm": 0.5 * s, "launch": 3.5 * s} for s in (1.0, 2.0, 3.0, 4.0)]
    found, blind = (
        fit_corrections([run(s, 1.1 * sum(s.values()), measured_terms_s=traced(s)) for s in seconds])
        for traced in (lambda s: {"dp_comm": 9.0 * s["dp_comm"], "pp_bubble": 1.0}, lambda s: None)
    )
    assert found == blind


def test_traces_that_scatter_say_less() -> None:
    """One term, prior half-width 20 %, two traces at factors 0.8 and 1.6 of plans that took 1.0 and 1.2 of their predictions: the least
    of the objective, in which the variance of the traces' mean is that of tracing and half of their own."""
    prior, noise, trace = 0.20 / 1.2816, UNMODELLED_RANGE.value / 1.2816, 0.13 / 1.2816
    traces, ratios = np.log([0.8, 1.6]), np.log([1.0, 1.2])
    grid = np.linspace(-0.3, 0.6, 900_001)
    objective = grid**2 / (2 * prior**2) + sum(2.5 * np.log1p(((r - grid) / noise) ** 2 / 4) for r in ratios)
    objective += (traces.mean() - grid) ** 2 / (2 * (trace**2 + np.var(traces, ddof=1) / 2))
    runs = [
        run({"gemm": s}, s * math.exp(r), widths={"gemm": 0.20}, measured_terms_s={"gemm": s * math.exp(t)})
        for s, r, t in zip((1.0, 2.0), ratios, traces, strict=True)
    ]
    (only,) = fit_corrections(runs, recipe=Recipe(gated=False))
    assert only.factor == pytest.approx(math.exp(grid[np.argmin(objective)]), rel=1e-4)


def test_a_gain_within_one_standard_error_keeps_nothing() -> None:
    """Two plans of one term, left out in turn. With a flat prior each is predicted by the other's ratio: at 1.10 and 1.30 the errors
    fall from 9.5 and 26.2 % to 16.7 % each, by -7.2 and 9.5 %: a mean of 1.2 %, well within its standard error of 8.4 %. At 1.20 and
    1.25 they fall from 18.2 and 22.3 % to 4.1 %, by 14.2 and 18.2 %, a mean of 16.2 % with a standard error of 2.0 %."""
    near, far = (
        fit_corrections([run({"gemm": 1.0}, a), run({"gemm": 2.0}, 2.0 * b)], recipe=Recipe(shrinks=False))
        for a, b in ((1.20, 1.25), (1.10, 1.30))
    )
    assert [each.kept for each in (*near, *far)] == [True, False]
    assert far[0].error_before == pytest.approx((math.log(1.1) + math.log(1.3)) / 2)
    assert far[0].error_after == pytest.approx(math.log(1.3 / 1.1), rel=0.01)


def test_a_factor_that_clearly_harms_is_dropped() -> None:
    """Products take 1.3 times as long in eight plans. Four others spend their step on the optimizer, which takes 0.8 or 1.25 times as
    long by turns: whichever is left out, the other three draw the factor to the wrong side of 1."""
    runs = [run({"gemm": g}, 1.3 * g) for g in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)]
    runs += [run({"optimizer": s}, s * r) for s, r in ((1.0, 0.8), (1.5, 1.25), (2.0, 0.8), (2.5, 1.25))]
    found = {each.term: each for each in fit_corrections(runs)}
    assert found["gemm"].kept
    assert not found["optimizer"].kept


def test_the_order_in_which_runs_arrive_changes_no_bit() -> None:
    runs = [run(s, 1.25 * s["gemm"] + s["attention"] + s["optimizer"], source=str(n)) for n, s in enumerate(SHARES)]
    assert fit_corrections(runs) == fit_corrections(runs[::-1])


def test_scopes_are_fitted_apart() -> None:
    other = Scope("torchtitan", "native", "H100-SXM-80GB")
    runs = [run({"gemm": k}, 1.2 * k) for k in (1.0, 2.0, 3.0)]
    others = [Measured(other, {"gemm": k}, 0.9 * k, (0.8 * k, 1.2 * k)) for k in (1.0, 2.0, 3.0)]
    found = {each.scope: each.factor for each in fit_corrections([*runs, *others])}
    assert found[SCOPE] > 1.1
    assert found[other] < 0.95


def test_memory_terms_are_learnt_from_allocated_bytes() -> None:
    """Activations take 0.9 of what is predicted; states are right."""
    sizes = [(40e9, 10e9), (20e9, 30e9), (30e9, 20e9), (10e9, 50e9), (25e9, 5e9)]
    runs = [
        Measured(SCOPE, {}, memory_bytes={"optimizer_states": s, "activations": a}, allocated_bytes=s + 0.9 * a)
        for s, a in sizes
    ]
    found = kept(runs)
    assert found["activations"] == pytest.approx(0.9, rel=0.01)
    assert found.get("optimizer_states", 1.0) == pytest.approx(1.0, abs=0.003)


def test_ranges_tighten_by_the_errors_of_runs_left_out() -> None:
    """Twelve plans predicted to the digit, within ranges of 20 %: of squares 2 and 12 · 0 remain 2 / 14."""
    found = fit_corrections([run(s, sum(s.values())) for s in SHARES])
    assert found[0].range_factor == pytest.approx((2 / 14) ** 0.5)


@pytest.mark.parametrize("chosen", [("gemm", "launch"), ("gemm", "dp_comm"), ("launch",)])
def test_the_fit_corrects_as_predictions_are_corrected(chosen: tuple[str, ...]) -> None:
    """Two ways to the same totals, and slopes against differences, with and without a factor for the host."""
    rows = np.abs(RNG.normal(1.0, 0.5, (5, len(TIME_NAMES))))
    rows[0, TIME_NAMES.index("launch")] = 0.0
    behind = np.array([name in BEHIND_HOST for name in TIME_NAMES])
    problem = Problem(
        rows,
        rows.sum(axis=1),
        np.ones(19),
        0.1,
        0.04,
        np.full_like(rows, np.nan),
        0.1,
        TIME_NAMES.index("launch"),
        behind,
    )
    at = np.array([TIME_NAMES.index(name) for name in chosen])
    logs = np.array([[0.15, -0.2][: len(chosen)]])
    found, slopes = totals(problem, logs, at)
    from_applied = [by_hand(row, dict(zip(chosen, np.exp(logs[0]), strict=True))) for row in rows]
    assert found[0] == pytest.approx(from_applied)
    for s in range(len(chosen)):
        moved = logs.copy()
        moved[0, s] += 1e-6
        assert slopes[0, :, s] == pytest.approx(np.log(totals(problem, moved, at)[0][0] / found[0]) / 1e-6, abs=1e-4)


def by_hand(row: np.ndarray, factors: Mapping[str, float]) -> float:
    """The formula of [T-6], written out."""
    t = dict(zip(TIME_NAMES, row, strict=True))
    new = {name: value * factors.get(name, 1.0) for name, value in t.items()}
    behind, after = (sum(each[name] for name in BEHIND_HOST) for each in (t, new))
    p = min(t["launch"] / (0.1 * sum(row)), 1.0)
    host = factors.get("launch", 1.0) * (behind + t["launch"])
    new["launch"] = max(0.0, t["launch"] + p * (host - t["launch"] - after))
    return sum(new.values())
