"""The bars to which accuracy is held: one line per figure, with the rows over which it is taken and its bound.

Figures are fractions. A bar whose rows are absent, because a source distribution leaves some out, has the value NaN and is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.accuracy.figures import figures, mape, reduced
from benchmarks.accuracy.measured_rows import Scored
from benchmarks.accuracy.memory_by_kind import kind_errors, rank_errors
from benchmarks.accuracy.state import OWN_PROFILE, OWN_SOURCES, State, mask

Json = Mapping[str, Any]
DIFFERENT = 0.10
"""ZeRO-3 and 3-D runs of SC'21 Table 2 must be predicted in their order if their times differ by more than this fraction."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of the table."""

    rows: str
    figure: str
    value: float
    low: float
    high: float
    """The value must lie in [low, high]."""

    @property
    def passed(self) -> bool | None:
        """Whether the value is within its bounds; None if there is nothing to judge."""
        return None if math.isnan(self.value) else self.low <= self.value <= self.high


def bars(state: State) -> list[Bar]:
    """All bars, in the order of the table."""
    every = state.figures()

    def figure(source: str, name: str) -> float:
        return every[source][name] if source in every else math.nan

    def at_most(rows: str, what: str, value: float, bound: float) -> Bar:
        return Bar(rows, what, value, 0.0, bound)

    def time(source: str, bound: float) -> Bar:
        return at_most(source, "time error", figure(source, "time_mape"), bound)

    # A bound is what the model is meant to reach, and not what it happens to reach: missed bars are shown as missed, and
    # docs/ACCURACY_LOG.md records how each figure moved.
    return [
        time("megatron_sc21_table1", 0.04),
        time("korthikanti2022", 0.036),
        at_most("layer times (arXiv:2205.05198, Table 4)", "mean error", mape(state.layer_errors), 0.04),
        time("vtrain_multi", 0.08),
        Bar("vtrain_multi", "Spearman, worst group", figure("vtrain_multi", "spearman_min"), 0.6, 1.0),
        Bar("vtrain_multi", "Spearman, other group", figure("vtrain_multi", "spearman_max"), 0.9, 1.0),
        at_most("vtrain_multi", "top-1 regret, worst group", figure("vtrain_multi", "top1_regret_max"), 0.045),
        time("vtrain_single", 0.12),
        at_most("vtrain_single", "mean top-1 regret", figure("vtrain_single", "top1_regret"), 0.05),
        at_most("bigscience", "one-factor time error", figure("bigscience", "one_factor_mape"), 0.08),
        time("bigscience", 0.12),
        at_most("bigscience", "top-1 regret, worst group", figure("bigscience", "top1_regret_max"), 0.02),
        at_most("bigscience", "device memory error", figure("bigscience", "device_mape"), 0.08),
        time("llm_foundry", 0.06),
        time("torchtitan", 0.10),
        time("internevo", 0.08),
        *_zero3_bars(state),
        *_simumax_bars(state),
        *(bar for source in OWN_SOURCES for bar in _own_bars(state, source)),
        at_most("torchtitan", "reserved memory error", figure("torchtitan", "reserved_mape"), 0.05),
        at_most("nanotron", "memory error", figure("nanotron", "memory_mape"), 0.12),
        at_most("ml_engineering", "memory error", figure("ml_engineering", "memory_mape"), 0.10),
        time("dgxc", 0.08),
        time("nemo_perf", 0.08),
        time("megatron_bridge", 0.25),
        *_range_and_verdict_bars(state),
    ]


def _zero3_bars(state: State) -> list[Bar]:
    """ZeRO-3 rows of SC'21 Table 2, and their order against the 3-D rows on as many GPUs."""
    name = "megatron_sc21_table2"
    if name not in state.sources:
        return []
    # All rows and not only the complete ones, because the 3-D rows leave facts unstated and would be missing.
    table = state.sources[name].rows
    sharded = np.array([row["strategy"].get("zero") == 3 for row in table.rows])
    gpus = np.array([row["cluster"]["num_nodes"] for row in table.rows])
    right = []
    for one in np.flatnonzero(sharded):
        for other in np.flatnonzero(~sharded & (gpus == gpus[one])):
            measured = table.measured_s[one] / table.measured_s[other]
            if max(measured, 1.0 / measured) - 1.0 > DIFFERENT:
                right.append((measured > 1.0) == bool(table.predicted_s[one] > table.predicted_s[other]))
    worst = reduced(np.max, np.abs(table.error[sharded]))
    return [
        Bar(name, "ZeRO-3 against 3-D in order where > 10 % apart", float(np.mean(right)), 1.0, 1.0),
        Bar(name, "worst ZeRO-3 row", worst, 0.0, 0.25),
    ]


def _simumax_bars(state: State) -> list[Bar]:
    name = "simumax_b200"
    if name not in state.sources:
        return []
    found, scored = [], state.sources[name].scored
    kinds: tuple[tuple[str, Callable[[Json], bool], float, float], ...] = (
        ("dense", lambda row: not row["model"].get("moe"), 0.06, 0.005),
        ("MoE", lambda row: bool(row["model"].get("moe")), 0.12, 0.015),
    )
    for label, keep, time_bound, memory_bound in kinds:
        part = scored.take(mask(scored, keep))
        found.append(Bar(f"{name}, {label}", "time error", mape(part.error), 0.0, time_bound))
        found.append(Bar(f"{name}, {label}", "allocated memory error", mape(part.memory_error), 0.0, memory_bound))
    reserved = mape(kind_errors(scored, "reserved"))
    return [*found, Bar(name, "reserved memory error", reserved, 0.0, 0.05)]


def is_single(row: Json) -> bool:
    """Whether a run is neither tensor nor pipeline parallel, and not compiled."""
    return not row["training"].get("compile") and row["strategy"]["tp"] == row["strategy"]["pp"] == 1


def is_eager_parallel(row: Json) -> bool:
    """Whether a run is tensor or pipeline parallel, and not compiled."""
    return not row["training"].get("compile") and not is_single(row)


def is_compiled(row: Json) -> bool:
    """Whether a run is compiled with torch.compile."""
    return bool(row["training"].get("compile"))


# Apart, because different things limit them: the GPU, the compiler's fusions, and the host that cannot launch fast enough.
OWN_PARTS: Mapping[str, tuple[Callable[[Json], bool], float]] = {
    "tp 1": (is_single, 0.05),
    "compiled": (is_compiled, 0.10),
    "eager tp and pp": (is_eager_parallel, 0.20),
}


def _own_bars(state: State, source: str) -> list[Bar]:
    if source not in state.sources:
        return []
    found, whole = [], state.sources[source].priced
    for label, (keep, bound) in OWN_PARTS.items():
        part = whole.take(mask(whole, keep))
        if part.timed.any():
            found.append(Bar(f"{source}, {label}, {OWN_PROFILE}", "time error", mape(part.error), 0.0, bound))
    ranks = reduced(np.max, np.abs(rank_errors(whole)))
    found.append(Bar(source, "allocated memory, worst rank of all rows", ranks, 0.0, 0.01))
    found.append(Bar(source, "reserved memory error", mape(kind_errors(whole, "reserved")), 0.0, 0.05))
    found.append(Bar(source, "device memory error", mape(kind_errors(whole, "device")), 0.0, 0.05))
    return found


def at_risk_share(scored: Scored) -> float:
    """Share of answered rows that ran and were predicted `at-risk`."""
    ran = scored.answered & scored.ran
    return float((scored.verdict[ran] == "at-risk").mean()) if ran.any() else math.nan


def _range_and_verdict_bars(state: State) -> list[Bar]:
    scored = state.all_scored()
    found = figures(scored)
    return [
        Bar("all rows that ran", "false oom", found["false_oom"], 0, 0),
        Bar("all rows that ran", "share at-risk", at_risk_share(scored), 0.0, 0.08),
        # A range of 80 % that contains everything is as wrong as one that contains half: it would be too wide to decide anything.
        Bar("all rows that ran", "share of measured times inside the range", found["coverage"], 0.75, 0.90),
        Bar("all rows that ran", "median width of the range (high / low)", found["range_width"], 1.0, 1.35),
        Bar("all rows measured out of memory", "missed oom", found["missed_oom"], 0, 0),
    ]
