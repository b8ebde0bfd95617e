"""Scores of measured rows: time, ranking, memory, verdicts. Fractions everywhere, NaN where undefined.

time error         predicted / measured - 1 over timed rows; APE its absolute value; MAPE, median, max; bias its mean
null_mape          MAPE of the null model over all rows with a measured time; vs_null: ours / the null's where both are defined
one_factor_mape    MAPE after scaling by the median measured / predicted of the source's other rows
coverage, width    share of timed rows inside their range; median high / low
ranking groups     timed rows of one source and group, at least five; ties in predicted time are broken against us
spearman           rank correlation of predicted and measured time, average ranks for ties
regret             measured time of the row predicted fastest / best measured - 1; top5 the best of the five predicted
                   fastest, in groups of more than five
order_accuracy     share of pairs of unequal measured time predicted in that order, a predicted tie counting half
memory             error of the predicted peak of the measured kind
verdicts           answered rows that ran, and those measured out of memory, by predicted verdict
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from benchmarks.accuracy.measured_rows import MEMORY_KINDS, Floats, Scored

Figures = dict[str, float]
MIN_GROUP_ROWS = TOP_K = 5
VERDICTS = {
    "ran_fits": (False, "fits"), "ran_at_risk": (False, "at-risk"), "false_oom": (False, "oom"),
    "oom_caught": (True, "oom"), "oom_at_risk": (True, "at-risk"), "missed_oom": (True, "fits"),
}  # fmt: skip


def reduced(reduce: Callable[[Floats], np.floating], values: Floats) -> float:
    """The reduction over the defined values; NaN if there are none."""
    defined = values[~np.isnan(values)]
    return float(reduce(defined)) if defined.size else math.nan


def mape(errors: Floats) -> float:
    """Mean absolute error."""
    return reduced(np.mean, np.abs(errors))


def figures(scored: Scored) -> Figures:
    """All scores of these rows."""
    return {**time_figures(scored), **ranking_figures(scored), **memory_figures(scored), **verdict_figures(scored)}


def time_figures(scored: Scored) -> Figures:
    """Time scores."""
    error, null = scored.error, scored.null_s / scored.measured_s - 1.0
    # Ours and the null model are compared over the same rows, or the one that answers only easy rows would look better.
    both = ~np.isnan(error + null)
    null_of_both = mape(null[both])
    ranged = scored.timed & (scored.low_s <= scored.high_s)
    inside = (scored.low_s <= scored.measured_s) & (scored.measured_s <= scored.high_s)
    rows, answered = len(scored), int(scored.answered.sum())
    return {
        "rows": rows,
        "answered": answered,
        "unanswered": 1.0 - answered / rows if rows else math.nan,
        "timed": int(scored.timed.sum()),
        "time_mape": mape(error),
        "time_median_ape": reduced(np.median, np.abs(error)),
        "time_bias": reduced(np.mean, error),
        "time_max_ape": reduced(np.max, np.abs(error)),
        "null_rows": int((~np.isnan(null)).sum()),
        "null_mape": mape(null),
        "vs_null": mape(error[both]) / null_of_both if null_of_both else math.nan,
        "one_factor_mape": mape(scored.one_factor_s / scored.measured_s - 1.0),
        "coverage": reduced(np.mean, inside[ranged].astype(np.float64)),
        "range_width": reduced(np.median, scored.high_s[ranged] / scored.low_s[ranged]),
    }


def ranking_groups(scored: Scored) -> dict[str, Scored]:
    """Rows of each group of at least five timed ones."""
    timed = scored.take(scored.timed & (scored.ranking_group != ""))
    names, counts = np.unique(timed.ranking_group, return_counts=True)
    return {
        str(name): timed.take(timed.ranking_group == name)
        for name, count in zip(names, counts, strict=True)
        if count >= MIN_GROUP_ROWS
    }


def rank_quality(predicted_s: Floats, measured_s: Floats) -> tuple[float, float, float, float]:
    """Spearman, top-1 regret, regret of the best of five, order accuracy of one group."""
    ranks = []
    for seconds in (predicted_s, measured_s):
        _, inverse, counts = np.unique(seconds, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2.0)[inverse.reshape(-1)])
    # Without a difference in either order a correlation is not defined; numpy would warn and return NaN as well.
    flat = any(np.ptp(rank) == 0 for rank in ranks)
    spearman = math.nan if flat else float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    # Equal predictions are ordered with the slowest first: a tie that was broken in our favour would be luck.
    regrets = measured_s[np.lexsort((-measured_s, predicted_s))] / measured_s.min() - 1.0
    first, second = np.triu_indices(len(measured_s), 1)
    truth, guess = (np.sign(s[first] - s[second]) for s in (measured_s, predicted_s))
    # The product of signs is 1 for a pair in order, -1 for a reversed one and 0 for a predicted tie, which counts half.
    order = reduced(np.mean, ((1.0 + truth * guess) / 2.0)[truth != 0])
    return spearman, float(regrets[0]), float(regrets[:TOP_K].min()) if len(regrets) > TOP_K else math.nan, order


def ranking_figures(scored: Scored) -> Figures:
    """Ranking scores over the groups of these rows."""
    groups = [rank_quality(group.predicted_s, group.measured_s) for group in ranking_groups(scored).values()]
    spearman, top1, top5, order = np.array(groups, np.float64).reshape(-1, 4).T
    return {
        "groups": len(groups),
        "spearman_min": reduced(np.min, spearman),
        "spearman_median": reduced(np.median, spearman),
        "spearman_max": reduced(np.max, spearman),
        "top1_regret": reduced(np.mean, top1),
        "top1_regret_max": reduced(np.max, top1),
        "top5_regret": reduced(np.mean, top5),
        "top5_regret_max": reduced(np.max, top5),
        "order_accuracy": reduced(np.mean, order),
    }


def memory_figures(scored: Scored) -> Figures:
    """Memory scores, of all kinds together and of each."""
    found: Figures = {}
    for kind in ("memory", *MEMORY_KINDS):
        errors = scored.memory_error[(scored.memory_kind == kind) | (kind == "memory")]
        found[f"{kind}_rows"] = int((~np.isnan(errors)).sum()) or math.nan
        found[f"{kind}_mape"], found[f"{kind}_bias"] = mape(errors), reduced(np.mean, errors)
    return found


def verdict_figures(scored: Scored) -> Figures:
    """Counts of answered rows by what happened and what was predicted."""
    judged = scored.answered & (scored.ran | scored.out_of_memory)
    return {
        name: int((judged & (scored.out_of_memory == oom) & (scored.verdict == verdict)).sum())
        if judged.any()
        else math.nan
        for name, (oom, verdict) in VERDICTS.items()
    }
