"""Which corrections predict runs that they have not seen, and how much ranges tighten by what was learnt. [T-6] [M-21]

Every plan is left out in turn, with all its repeats, or several plans at once where there are many. Factors are kept only if the
runs that were left out are then clearly better predicted; a factor that clearly harms them is dropped. What is clear follows from how
much the plans differ (one standard error, as in Breiman et al., Classification and Regression Trees, 1984, section 3.4.3), so that no
figure had to be chosen on measured runs. Array suffixes: B folds, n runs, T all terms, S terms that get a factor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cost_models.constants import UNMODELLED_RANGE, Constant
from cost_models.corrections.estimate import HALF_WIDTH_SIGMAS, Problem, fit_logs, totals
from cost_models.corrections.records import Correction, Measured, Quantity, Scope
from cost_models.strategies.strategy import Floats, Ints
from cost_models.terms import BEHIND_HOST, MEMORY_NAMES, TIME_NAMES, TIME_TERMS

TRACE_RANGE = Constant(
    0.13, "1", 0.05, 0.30,
    "80 % half-width of a term in one traced step against the term in steps that are not traced: a tracer slows launches, and "
    "kernels on the border of two terms are counted to one of them; no measurement [T-6]",
)  # fmt: skip
UNKNOWN_WIDTH = Constant(
    0.20,
    "1",
    0.05,
    0.50,
    "80 % half-width of a term whose tier is not stated, taken to be extrapolated or nominal [T-6]",
)
MEMORY_NOISE = Constant(
    0.010, "1", 0.002, 0.03,
    "80 % half-width of allocated bytes that no term describes: runs of data/measured_h200 whose terms all follow from shapes are "
    "within 0.1 to 1 % [M-21]",
)  # fmt: skip
_MEMORY_WIDTHS: Mapping[str, Constant] = {
    **dict.fromkeys(
        ("parameters", "main_parameters", "gradients", "optimizer_states"),
        Constant(0.01, "1", 0.002, 0.03, "80 % half-width of states, which follow from shapes but for padding; estimated [M-21]"),
    ),
    **dict.fromkeys(
        ("activations", "logits_and_loss"),
        Constant(0.10, "1", 0.03, 0.20, "80 % half-width of what kernels save and make: versions differ by a tensor; estimated [M-21]"),
    ),
}  # fmt: skip
_OTHER_MEMORY = Constant(
    0.30,
    "1",
    0.1,
    0.6,
    "80 % half-width of buffers and temporaries, whose number depends on versions and settings; estimated [M-21]",
)
_SHOWN_BY_KERNELS = np.array(
    [not (t.is_communication or t.name in ("launch", "pp_bubble", "jitter")) for t in TIME_TERMS]
)
"""Terms whose seconds a trace of one rank shows: a collective's kernel also waits for the slowest rank and its host, which are other
terms here, and the tracer's own work is a part of the waits that it shows."""
_LEAST_SHARE = 0.005
"""Share of a measured run's total below which a term is not corrected: no measurement of the whole could tell."""
_MOST_FOLDS = 25
_MOST_RUNS = 400
"""Runs of one scope that are used, the last ones."""
_WILD = 0.5
"""Logarithmic error beyond which a run that was left out counts no more than this: it may not have been what it was taken for."""
_PRIOR_RUNS = 2.0
"""How many runs the width of an uncorrected range counts for beside those that were measured; likeliest of 0.5 to 16 in runs of
data/measured_h200 that were left out twice: of the fit, and of this choice."""
_NO_PRIOR_SD = 10.0
"""Standard deviation of a logarithm of which nothing is known."""
_WIDEST = 3.0
"""Standard deviations that one run widens a range by at most."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The ingredients of a fit, so that a benchmark can leave each out."""

    shrinks: bool = True
    """Whether factors are drawn towards 1 by what was known of their terms."""
    resists: bool = True
    """Whether a run that is far off weighs less."""
    gated: bool = True
    """Whether runs that are left out decide which factors are kept."""
    traced: bool = True
    """Whether traced terms are used beside totals."""
    prior_runs: float = _PRIOR_RUNS


USUAL = Recipe()


def fit_corrections(measured: Sequence[Measured], *, recipe: Recipe = USUAL) -> tuple[Correction, ...]:
    """The corrections that these runs lead to, scope by scope, kept or not. [T-6] [M-21]

    The same runs give the same corrections in any order. A scope with one measured plan keeps nothing, since nothing can be left out.

    Args:
        measured: runs with their uncorrected predictions. Those without a time teach nothing of time, and so for memory.
        recipe: what the fit is made of.
    """
    by_scope: dict[Scope, list[Measured]] = defaultdict(list)
    for each in measured:
        by_scope[each.scope].append(each)
    found: list[Correction] = []
    for scope in sorted(by_scope):
        # The sum of floating-point numbers depends on their order in the last bits, which must not be the order of arrival.
        runs = sorted(by_scope[scope][-_MOST_RUNS:], key=lambda run: (run.plan, run.step_time_s or 0.0, run.source))
        # Time and memory are learnt apart, since a run may have measured one of them alone.
        found += _fitted(scope, _time_runs(runs, recipe))
        found += _fitted(scope, _memory_runs(runs, recipe))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class _Runs:
    """The runs of one scope that measured one quantity."""

    quantity: Quantity
    names: tuple[str, ...]
    problem: Problem
    fold_n: Ints
    """Which fold leaves each run out."""
    half_width_n2: Floats
    """Logarithmic half-widths of the uncorrected range below and above; empty for memory."""
    sources: tuple[str, ...]
    recipe: Recipe

    def __len__(self) -> int:
        return len(self.problem.measured_n)

    @cached_property
    def candidates(self) -> Ints:
        """Terms large enough to be told apart."""
        share_T = (self.problem.terms_nT / self.problem.terms_nT.sum(axis=1, keepdims=True)).max(axis=0, initial=0.0)
        return np.flatnonzero(share_T >= _LEAST_SHARE)

    @cached_property
    def can_leave_out(self) -> bool:
        return len(self) > 0 and int(self.fold_n.max()) > 0

    def left_out(self, chosen: Ints) -> Floats:
        """Logarithm of measured over predicted, each run predicted by a fit without its fold, shape (n,)."""
        folds = np.arange(self.fold_n.max() + 1)
        logs_BS = fit_logs(self.problem, self.fold_n[None] != folds[:, None], chosen)
        total_Bn, _ = totals(self.problem, logs_BS, chosen)
        return np.asarray(np.log(self.problem.measured_n / total_Bn[self.fold_n, np.arange(len(self))]))

    def errors(self, chosen: Ints) -> Floats:
        """Mean error of the runs left out with each fold, as a fraction, shape (folds,)."""
        size = np.minimum(np.abs(self.left_out(chosen)), _WILD)
        return np.asarray(np.bincount(self.fold_n, weights=size) / np.bincount(self.fold_n))

    def error(self, chosen: Ints) -> float:
        """Mean error of runs left out, as a fraction; all folds count alike, however many repeats they hold."""
        return float(np.mean(self.errors(chosen)))


def _runs(
    quantity: Quantity,
    names: tuple[str, ...],
    runs: Sequence[Measured],
    problem: Callable[[], Problem],
    widths: Floats,
    recipe: Recipe,
) -> _Runs:
    # Repeats of one plan share its fold: a run whose twin stays in the fit would be predicted from itself.
    plans = {plan: number for number, plan in enumerate(sorted({run.plan for run in runs}))}
    folds = np.array([plans[run.plan] % _MOST_FOLDS for run in runs], np.int64)
    sources = tuple(sorted({run.source for run in runs if run.source}))
    made = problem()
    if not recipe.shrinks:
        made = replace(made, prior_sd_T=np.full_like(made.prior_sd_T, _NO_PRIOR_SD), common_sd=0.0)
    if not recipe.resists:
        made = replace(made, tail=np.inf)
    if not recipe.traced:
        made = replace(made, traced_nT=np.full_like(made.traced_nT, np.nan))
    return _Runs(quantity, names, made, folds, widths, sources, recipe)


def _time_runs(runs: Sequence[Measured], recipe: Recipe) -> _Runs:
    timed = [run for run in runs if run.step_time_s is not None and sum(run.terms_s.values()) > 0]

    def problem() -> Problem:
        terms_nT = _table([run.terms_s for run in timed], TIME_NAMES)
        traced_nT = _table([run.measured_terms_s or {} for run in timed], TIME_NAMES)
        told = (traced_nT > 0) & (terms_nT > 0.02 * terms_nT.sum(axis=1, keepdims=True))
        told[:, ~_SHOWN_BY_KERNELS] = False
        ratio = np.where(told, traced_nT, 1.0) / np.where(told, terms_nT, 1.0)
        width_T = [
            np.median([run.widths.get(name, UNKNOWN_WIDTH.value) for run in timed] or [1.0]) for name in TIME_NAMES
        ]
        return Problem(
            terms_nT=terms_nT,
            measured_n=np.array([run.step_time_s for run in timed], np.float64),
            prior_sd_T=np.array(width_T) / HALF_WIDTH_SIGMAS,
            common_sd=float(np.median([run.common_width for run in timed] or [0.0])) / HALF_WIDTH_SIGMAS,
            noise_sd=UNMODELLED_RANGE.value / HALF_WIDTH_SIGMAS,
            traced_nT=np.where(told, np.clip(np.log(ratio), -_WILD, _WILD), np.nan),
            trace_sd=TRACE_RANGE.value / HALF_WIDTH_SIGMAS,
            launch=TIME_NAMES.index("launch"),
            behind_T=np.array([name in BEHIND_HOST for name in TIME_NAMES]),
        )

    ranges = [run.range_s or (0.0, 0.0) for run in timed]
    predicted = [sum(run.terms_s.values()) for run in timed]
    widths = [
        (np.log(total / low), np.log(high / total)) if low > 0 else (np.nan, np.nan)
        for (low, high), total in zip(ranges, predicted, strict=True)
    ]
    return _runs("time", TIME_NAMES, timed, problem, np.array(widths).reshape(-1, 2), recipe)


def _memory_runs(runs: Sequence[Measured], recipe: Recipe) -> _Runs:
    held = [run for run in runs if run.allocated_bytes is not None and sum(run.memory_bytes.values()) > 0]

    def problem() -> Problem:
        terms_nT = _table([run.memory_bytes for run in held], MEMORY_NAMES)
        width_T = np.array([_MEMORY_WIDTHS.get(name, _OTHER_MEMORY).value for name in MEMORY_NAMES])
        return Problem(
            terms_nT=terms_nT,
            measured_n=np.array([run.allocated_bytes for run in held], np.float64),
            prior_sd_T=width_T / HALF_WIDTH_SIGMAS,
            common_sd=0.0,
            noise_sd=MEMORY_NOISE.value / HALF_WIDTH_SIGMAS,
            traced_nT=np.full_like(terms_nT, np.nan),
            trace_sd=1.0,
        )

    return _runs("memory", MEMORY_NAMES, held, problem, np.zeros((0, 2)), recipe)


def _table(rows: Sequence[Mapping[str, float]], names: tuple[str, ...]) -> Floats:
    return np.array([[float(row.get(name) or 0.0) for name in names] for row in rows]).reshape(-1, len(names))


def _fitted(scope: Scope, runs: _Runs) -> list[Correction]:
    """The corrections of one scope and quantity, one for each term that is large enough to be told apart."""
    if not len(runs) or not len(runs.candidates):
        return []
    chosen = _kept(runs) if runs.can_leave_out else np.zeros(0, np.int64)
    logs = fit_logs(runs.problem, np.ones((1, len(runs)), np.bool_), chosen)[0]
    factors = dict(zip(chosen.tolist(), np.exp(logs).tolist(), strict=True))
    # How far a plan may be from the measured ones for the range to have been learnt: terms that are not kept count as well,
    # because their plain predictions are part of the errors that were seen.
    share_T = (runs.problem.terms_nT / runs.problem.terms_nT.sum(axis=1, keepdims=True)).max(axis=0)
    learnt = _range_factor(runs, chosen)
    found = []
    for term in runs.candidates.tolist():
        before, after = _errors(runs, chosen, term) if runs.can_leave_out else (None, None)
        kept = term in factors
        found.append(
            Correction(
                term=runs.names[term],
                factor=factors[term] if kept else 1.0,
                kept=kept,
                scope=scope,
                trials=len(runs),
                error_before=before,
                error_after=after,
                reason=_reason(before, after, kept=kept),
                sources=runs.sources,
                largest_share=float(share_T[term]),
                range_factor=learnt,
            )
        )
    return found


def _kept(runs: _Runs) -> Ints:
    """The terms that keep their factor: none unless all together predict runs left out clearly better, less those that harm."""
    chosen, none = runs.candidates, np.zeros(0, np.int64)
    if not runs.recipe.gated:
        return chosen
    # All at once, and before any is chosen: a slow product and a fast host can cancel in every run, so that neither factor helps
    # without the other; and of many choices one would always look better on the runs by which it was chosen.
    error = runs.errors(chosen)
    if not _is_clear(runs.errors(none) - error):
        return none
    while len(chosen):
        fewer = [np.delete(chosen, at) for at in range(len(chosen))]
        errors = [runs.errors(each) for each in fewer]
        best = int(np.argmin([each.mean() for each in errors]))
        if not _is_clear(error - errors[best]):
            break
        chosen, error = fewer[best], errors[best]
    return chosen


def _is_clear(gained: Floats) -> bool:
    """Whether errors fell by more than chance explains: their mean over folds, shape (folds,), is beyond one standard error."""
    return bool(gained.mean() > gained.std(ddof=1) / np.sqrt(len(gained)))


def _errors(runs: _Runs, chosen: Ints, term: int) -> tuple[float, float]:
    """Errors of runs left out without and with a factor for this term, beside those that are kept."""
    return runs.error(chosen[chosen != term]), runs.error(np.union1d(chosen, [term]))


def _reason(before: float | None, after: float | None, *, kept: bool) -> str:
    if before is None or after is None:
        return "Not kept: only one plan was measured, so that none can be left out to check the factor."
    change = f"the mean error of runs that were left out from {before:.1%} to {after:.1%}"
    if kept and after < before:
        return f"Kept: it lowers {change}."
    if kept:
        return f"Kept with the other factors, which lower it together: alone it changes {change}, no more than chance does."
    return f"Not kept: it would change {change}."


def _range_factor(runs: _Runs, chosen: Ints) -> float:
    """What half-widths are multiplied by: the spread of errors of runs left out against the ranges that they were given."""
    if not runs.can_leave_out or not len(runs.half_width_n2):
        return 1.0
    error_n = runs.left_out(chosen)
    width_n = np.where(error_n > 0, runs.half_width_n2[:, 1], runs.half_width_n2[:, 0])
    has = np.isfinite(width_n) & (width_n > 0)
    squares = np.minimum((HALF_WIDTH_SIGMAS * error_n[has] / width_n[has]) ** 2, _WIDEST**2)
    # Repeats of one plan err alike, so that they count as one run.
    weights = 1.0 / np.bincount(runs.fold_n)[runs.fold_n[has]]
    prior = runs.recipe.prior_runs
    return float(np.sqrt((prior + weights @ squares) / (prior + weights.sum())))
