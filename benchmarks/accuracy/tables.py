"""The accuracy report as markdown: bars, sources beside the null model and other tools, memory, worst rows, cells, importance."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.accuracy.bars import OWN_PARTS, Bar
from benchmarks.accuracy.figures import figures, mape, reduced
from benchmarks.accuracy.importance import best_single_factors, terms_of, without_terms
from benchmarks.accuracy.measured_rows import Floats, Json, Scored
from benchmarks.accuracy.memory_by_kind import emptiest_rank_errors, kind_errors, rank_errors
from benchmarks.accuracy.state import State, mask
from cost_models.terms import TIME_NAMES
from planner.request.job import resolve_job

PEERS = Path(__file__).with_name("peers.json")
FIGURE = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?(?: %)?|-")
VERDICT_WORDS = {True: "reached", False: "**missed**", None: "-"}
SHOWN_SHARE = 0.05
"""Terms below this share of the step are left out when a row is explained."""
SHOWN_EFFECT = 0.005
"""Constants that change no source's error by this much are left out."""


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A markdown table; columns of figures are right-aligned."""
    kept = list(lines)
    figures_only = [all(FIGURE.fullmatch(line[column]) for line in kept) for column in range(len(header))]
    rule = ["---:" if right else "---" for right in figures_only]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *kept))


def percent(value: float, *, signed: bool = False) -> str:
    """A fraction in percent, or a dash if it is undefined."""
    return "-" if math.isnan(value) else f"{100 * value:{'+' if signed else ''}.1f}"


def number(value: float) -> str:
    """A number with two decimals, or a dash if it is undefined."""
    return "-" if math.isnan(value) else f"{value:.2f}"


def bar_table(found: Sequence[Bar], left_out: Mapping[tuple[str, str], float]) -> str:
    """Each bar with its value now and with free constants refitted on the other sources."""
    lines = []
    for bar in found:
        other = replace(bar, value=left_out.get((bar.rows, bar.figure), math.nan))
        verdicts = [VERDICT_WORDS[bar.passed], VERDICT_WORDS[other.passed]]
        lines.append([f"{bar.rows}: {bar.figure}", _bound(bar), _value(bar), verdicts[0], _value(other), verdicts[1]])
    return table(["rows: figure", "bar", "now", "", "left out", ""], lines)


def _is_count(bar: Bar) -> bool:
    return bar.figure.endswith("oom")


def _is_ratio(bar: Bar) -> bool:
    return bar.figure.startswith(("Spearman", "median width"))


def _value(bar: Bar) -> str:
    return _shown(bar, bar.value)


def _shown(bar: Bar, value: float) -> str:
    if math.isnan(value):
        return "-"
    if _is_count(bar):
        return f"{value:.0f}"
    return number(value) if _is_ratio(bar) else f"{percent(value)} %"


def _bound(bar: Bar) -> str:
    if bar.low > 0 and bar.high < 1 and not _is_ratio(bar):
        return f"{_shown(bar, bar.low)} to {_shown(bar, bar.high)}"
    at_least = bar.high == 1.0
    return f"{'≥' if at_least else '≤'} {_shown(bar, bar.low if at_least else bar.high)}"


def source_table(state: State) -> str:
    """Time scores by source, beside the null model, in percent but for ratios and correlations."""
    header = [
        "source", "rows", "error", "bias", "max", "one factor", "null", "ours / null", "inside", "width", "Spearman min",
        "median", "regret mean", "max",
    ]  # fmt: skip
    lines = []
    parts = [(name, source.scored) for name, source in state.sources.items()]
    parts += [
        (f"{name}, {calibration}", own)
        for name, source in state.sources.items()
        for calibration, own in source.own.items()
    ]
    for name, scored in parts:
        f = figures(scored)
        if not f["timed"]:
            continue
        cells = [f"{f['timed']:.0f}", percent(f["time_mape"]), percent(f["time_bias"], signed=True)]
        cells += [percent(f[key]) for key in ("time_max_ape", "one_factor_mape", "null_mape")]
        cells += [number(f["vs_null"]), percent(f["coverage"]), number(f["range_width"])]
        cells += [number(f["spearman_min"]), number(f["spearman_median"])]
        lines.append([name, *cells, percent(f["top1_regret"]), percent(f["top1_regret_max"])])
    return table(header, lines)


def own_table(state: State) -> str:
    """Subsets of our own machine's rows, by calibration."""
    lines = []
    for name, source in state.sources.items():
        for calibration, scored in {"reference data": source.scored, **source.own}.items() if source.own else ():
            for label, (keep, _) in OWN_PARTS.items():
                part = scored.take(mask(scored, keep))
                if part.timed.any():
                    bias, worst = reduced(np.mean, part.error), reduced(np.max, np.abs(part.error))
                    cells = [percent(mape(part.error)), percent(bias, signed=True), percent(worst)]
                    lines.append([f"{name}, {label}", calibration, f"{part.timed.sum()}", *cells])
    return table(["rows", "calibration", "n", "error", "bias", "max"], lines)


def memory_table(state: State) -> str:
    """Memory errors by source and kind of reading, in percent."""
    lines = []
    for name, source in state.sources.items():
        scored = source.priced
        readings: dict[str, Floats] = {
            kind: scored.memory_error[scored.memory_kind == kind] for kind in ("allocated", "unspecified")
        }
        readings["allocated, every rank"] = rank_errors(scored)
        readings["allocated, emptiest rank"] = emptiest_rank_errors(scored)
        readings["reserved"], readings["device"] = kind_errors(scored, "reserved"), kind_errors(scored, "device")
        for kind, errors in readings.items():
            defined = errors[~np.isnan(errors)]
            if defined.size:
                bias = percent(float(defined.mean()), signed=True)
                cells = [percent(mape(defined)), bias, percent(float(np.abs(defined).max()))]
                lines.append([name, kind, f"{defined.size}", *cells])
    return table(["source", "reading", "n", "error", "bias", "max"], lines)


def verdict_table(state: State) -> str:
    """Predicted verdicts of rows that ran and of rows that ran out of memory, by source."""
    lines = []
    for name, source in state.sources.items():
        f = figures(source.scored)
        names = ("ran_fits", "ran_at_risk", "false_oom", "oom_caught", "oom_at_risk", "missed_oom")
        if not math.isnan(f["ran_fits"]):
            lines.append([name, *(f"{f[key]:.0f}" for key in names)])
    return table(["source", "ran: fits", "at-risk", "oom", "measured oom: oom", "at-risk", "fits"], lines)


def peer_table() -> str:
    """The errors that other tools reach on the same tables."""
    sources = json.loads(PEERS.read_text(encoding="utf-8"))["sources"]
    lines = [
        [source, entry["peer"], entry["figure"], entry["source"]]
        for source, entries in sources.items()
        for entry in entries
    ]
    return table(["rows", "peer", "error", "where from"], lines)


def worst_rows(state: State, *, count: int = 10) -> str:
    """The rows with the largest errors, the terms of their predictions, and how far one term would have to move."""
    lines = []
    for scored in state.timed().values():
        terms_s = terms_of(scored)
        for place in np.flatnonzero(scored.timed):
            gap_s = scored.measured_s[place] - scored.predicted_s[place]
            lines.append((abs(scored.error[place]), _explained(scored, int(place), terms_s[:, place], gap_s)))
    lines.sort(key=lambda line: -line[0])
    header = ["row", "layout", "measured s", "predicted s", "error", "made of", "one term alone would need"]
    return table(header, [cells for _, cells in lines[:count]])


def _explained(scored: Scored, place: int, terms_s: Floats, gap_s: float) -> list[str]:
    # Only terms that make up a part of the step: a small one could close the gap on paper by growing a hundredfold.
    order = [term for term in np.argsort(-terms_s) if terms_s[term] > SHOWN_SHARE * scored.predicted_s[place]]
    made_of = ", ".join(f"{TIME_NAMES[t]} {percent(terms_s[t] / scored.predicted_s[place])}" for t in order)
    factors = [(TIME_NAMES[t], 1.0 + gap_s / terms_s[t]) for t in order]
    needed = ", ".join(f"{name} x {factor:.2g}" for name, factor in factors if factor > 0) or "none can"
    row = scored.rows[place]
    seconds = [f"{value:.4g}" for value in (scored.measured_s[place], scored.predicted_s[place])]
    return [row["id"], _layout(row), *seconds, percent(scored.error[place], signed=True), made_of, needed]


def _layout(row: Json) -> str:
    strategy, training = row["strategy"], row["training"]
    degrees = [f"{name} {strategy[name]}" for name in ("tp", "pp", "dp", "cp", "ep") if strategy.get(name, 1) > 1]
    compiled = ["compiled"] if training.get("compile") else []
    model = str(row["model"].get("name") or row["model"].get("preset") or "?")
    return " ".join([model, *degrees, f"mb {strategy.get('micro_batch_size')}", *compiled])


def cell_table(state: State, *, min_rows: int = 2, count: int = 25) -> str:
    """Errors by cell of (tp, pp, micro-batch, generation) and by source, those that contribute most to a source's error first."""
    cells: dict[tuple[str, str], list[float]] = {}
    shares: dict[tuple[str, str], float] = {}
    for source, scored in state.timed().items():
        timed = scored.take(scored.timed)
        for row, error in zip(timed.rows, timed.error, strict=True):
            strategy = row["strategy"]
            generation = resolve_job(row).cluster.gpu.generation
            layout = f"tp {strategy.get('tp', 1)} pp {strategy.get('pp', 1)} mb {strategy.get('micro_batch_size')}"
            cell = (f"{layout}, {generation}", source)
            cells.setdefault(cell, []).append(float(error))
            shares[cell] = shares.get(cell, 0.0) + abs(float(error)) / len(timed)
    # By the share of the source's whole error, so that a frequent small error stands before a rare large one.
    kept = sorted((cell for cell, errors in cells.items() if len(errors) >= min_rows), key=lambda cell: -shares[cell])
    lines = [
        [*cell, f"{len(cells[cell])}", percent(mape(np.array(cells[cell]))),
         percent(float(np.mean(cells[cell])), signed=True), percent(shares[cell])]
        for cell in kept[:count]
    ]  # fmt: skip
    return table(["cell", "source", "n", "error", "bias", "points of the source's error"], lines)


def factor_table(state: State) -> str:
    """The one term whose scaling would help each source most, which is a hint and never a fit."""
    errors = {source: mape(scored.error) for source, scored in state.timed().items()}
    lines = [
        [source, percent(errors[source]), term, f"{factor:.2f}", percent(error)]
        for source, (term, factor, error) in best_single_factors(state).items()
    ]
    return table(["source", "error", "term", "times", "error then"], lines)


def ablation_table(state: State) -> str:
    """Mean error by source without each term, in percent."""
    by_source = without_terms(state)
    sources = list(by_source)
    lines = []
    for name in ("all", *TIME_NAMES):
        errors = [by_source[source][name] for source in sources]
        lines.append([name, *(percent(error) for error in errors), percent(float(np.mean(errors)))])
    return table(["without", *sources, "mean"], lines)


def constant_table(changes: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Change of each source's mean error, in percentage points, if a constant moves to an end of its range."""
    sources = sorted({source for ends in changes.values() for change in ends.values() for source in change})
    lines = [
        [f"{name} at its {end}", *(percent(change[source], signed=True) for source in sources)]
        for name, ends in changes.items()
        for end, change in ends.items()
        if max(abs(value) for value in change.values()) > SHOWN_EFFECT
    ]
    return table(["constant", *sources], lines)
