"""The factors that explain measured runs best: a robust fit of their logarithms around a prior. [T-6]

Many fits that differ in the runs they use are made at once, so that leaving each plan out in turn costs little more than one fit.
Array suffixes: B fits, n runs, T all terms, S terms that get a factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.strategies.strategy import Bools, Floats, Ints
from cost_models.terms import HOST_BOUND

HALF_WIDTH_SIGMAS = 1.2816
"""Standard deviations in the half-width of an 80 % interval of a normal distribution."""
_TAIL = 4.0
"""Degrees of freedom of the residuals' t distribution: one run that is far off then pulls little, however far off it is."""
_ITERATIONS = 12
_LONGEST_STEP = 0.5
"""Most that one iteration changes a logarithm by."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Runs of one scope, and what is known of their terms before they were measured."""

    terms_nT: Floats
    """Predicted seconds or bytes."""
    measured_n: Floats
    """Measured totals."""
    prior_sd_T: Floats
    """Standard deviation of each term's logarithm."""
    common_sd: float
    """That of a factor which all terms share."""
    noise_sd: float
    """That of what no term describes."""
    traced_nT: Floats
    """Logarithm of traced over predicted seconds, NaN where a term was not traced."""
    trace_sd: float
    """Standard deviation of what tracing itself changes."""
    launch: int | None = None
    """Position of the wait for the host among the terms; None for memory."""
    behind_T: Bools | None = None
    """Which terms run behind their launches."""
    tail: float = _TAIL
    """Degrees of freedom of the residuals' t distribution; infinite for a normal one."""


def totals(problem: Problem, log_BS: Floats, chosen_S: Ints) -> tuple[Floats, Floats]:
    """Corrected totals, shape (B, n), and the derivatives of their logarithms by those of the factors, shape (B, n, S).

    The same formulas as `applied.InForce.of_time`, with its derivatives. [T-6]
    """
    terms_nT = problem.terms_nT
    factor_BS = np.exp(log_BS)
    new_BnS = terms_nT[None][:, :, chosen_S] * factor_BS[:, None, :]
    old_n = terms_nT.sum(axis=1)
    total_Bn = old_n + (new_BnS - terms_nT[:, chosen_S]).sum(axis=2)
    slope_BnS = new_BnS
    if problem.launch is not None and problem.behind_T is not None:
        waits_n, work_n = terms_nT[:, problem.launch], terms_nT[:, problem.behind_T].sum(axis=1)
        paced_n = np.minimum(waits_n / (HOST_BOUND * old_n), 1.0)
        behind_S, is_wait_S = problem.behind_T[chosen_S], chosen_S == problem.launch
        grown_Bn = ((new_BnS - terms_nT[:, chosen_S]) * behind_S).sum(axis=2)
        host_B1 = np.where(is_wait_S.any(), (factor_BS * is_wait_S).sum(axis=1), 1.0)[:, None]
        wait_Bn = waits_n + paced_n * (host_B1 * (work_n + waits_n) - waits_n - work_n - grown_Bn)
        open_Bn = (wait_Bn > 0)[..., None]
        # The wait replaces the plainly multiplied one, and takes back what the work behind the host gained.
        total_Bn = total_Bn - (new_BnS * is_wait_S).sum(axis=2) - np.where(is_wait_S.any(), 0.0, waits_n)
        total_Bn = total_Bn + np.maximum(wait_Bn, 0.0)
        by_host_Bn1 = (paced_n * host_B1 * (work_n + waits_n))[..., None]
        slope_BnS = np.where(
            is_wait_S, by_host_Bn1 * open_Bn, new_BnS - new_BnS * behind_S * paced_n[None, :, None] * open_Bn
        )
    return total_Bn, slope_BnS / total_Bn[..., None]


def fit_logs(problem: Problem, used_Bn: Bools, chosen_S: Ints, *, start_BS: Floats | None = None) -> Floats:
    """Logarithms of the factors of the chosen terms for each choice of runs, shape (B, S).

        minimise  sum_n rho_t((log y_n - log total_n) / noise) + theta' C^-1 theta / 2,   C = diag(sd^2) + common^2

    Args:
        problem: the runs.
        used_Bn: which runs each fit uses.
        chosen_S: terms that get a factor; the others stay as predicted.
        start_BS: where the iteration starts; at no corrections by default.
    """
    num = len(chosen_S)
    logs_BS = np.zeros((len(used_Bn), num)) if start_BS is None else start_BS.copy()
    if not num:
        return logs_BS
    # What the whole machine has in common shows in all factors at once, which makes them covary before anything is measured.
    prior_SS = np.linalg.inv(np.diag(problem.prior_sd_T[chosen_S] ** 2) + problem.common_sd**2)
    traced_BS, traced_weight_BS = _traced(problem, used_Bn, chosen_S)
    measured_n = np.log(problem.measured_n)
    for _ in range(_ITERATIONS):
        total_Bn, slope_BnS = totals(problem, logs_BS, chosen_S)
        residual_Bn = (measured_n - np.log(total_Bn)) / problem.noise_sd
        weight_Bn = used_Bn * (1.0 + 1.0 / problem.tail) / (1.0 + residual_Bn**2 / problem.tail)
        weighted_BnS = slope_BnS * (weight_Bn / problem.noise_sd**2)[..., None]
        left_BSS = np.swapaxes(weighted_BnS, 1, 2) @ slope_BnS + prior_SS
        left_BSS = left_BSS + traced_weight_BS[:, :, None] * np.eye(num)
        right_BS = (weighted_BnS * (residual_Bn * problem.noise_sd)[..., None]).sum(axis=1) - logs_BS @ prior_SS
        right_BS = right_BS + traced_weight_BS * (traced_BS - logs_BS)
        # Gauss-Newton with the weights of the last iteration; the prior keeps the matrix positive, however few runs there are.
        step_BS = np.linalg.solve(left_BSS, right_BS[..., None])[..., 0]
        logs_BS = logs_BS + np.clip(step_BS, -_LONGEST_STEP, _LONGEST_STEP)
    return logs_BS


def _traced(problem: Problem, used_Bn: Bools, chosen_S: Ints) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mean logarithm that traces give each factor, and its weight, shape (B, S) each; 0 where nothing was traced."""
    logs_nS = problem.traced_nT[:, chosen_S]
    seen_nS = np.isfinite(logs_nS)
    count_BS = used_Bn.astype(np.float64) @ seen_nS.astype(np.float64)
    mean_BS = (used_Bn.astype(np.float64) @ np.where(seen_nS, logs_nS, 0.0)) / np.maximum(count_BS, 1.0)
    square_BS = (used_Bn.astype(np.float64) @ np.where(seen_nS, logs_nS, 0.0) ** 2) / np.maximum(count_BS, 1.0)
    scatter_BS = np.maximum(square_BS - mean_BS**2, 0.0) / np.maximum(count_BS - 1.0, 1.0)
    # Tracing changes all traced steps alike, so that many of them are as good as one; what they scatter by averages out.
    return mean_BS, (count_BS > 0) / (problem.trace_sd**2 + scatter_BS)
