"""The accepted state of the accuracy: scores by source, bars, and the verdict of every row, as tests/accuracy compares them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.accuracy.bars import bars
from benchmarks.accuracy.state import State
from benchmarks.record import ROOT

BASELINE = ROOT / "tests" / "accuracy" / "baseline.json"
KEPT_SCORES = (
    "time_mape", "time_bias", "one_factor_mape", "coverage", "range_width", "spearman_min", "top1_regret",
    "top1_regret_max", "allocated_mape", "reserved_mape", "device_mape", "unspecified_mape",
)  # fmt: skip
DRIFT = 0.01
"""Changes above this are shown: one percentage point, or 0.01 of a ratio."""


def snapshot(state: State) -> dict[str, Any]:
    """The part of a state that the baseline keeps; of the verdicts only those other than `fits`, by row."""
    scores = {
        source: {name: float(f"{values[name]:.6g}") for name in KEPT_SCORES if not math.isnan(values[name])}
        for source, values in state.figures().items()
    }
    judged = {f"{bar.rows}: {bar.figure}": float(f"{bar.value:.6g}") for bar in bars(state) if bar.passed is not None}
    verdicts = {
        row["id"]: str(verdict)
        for source in state.sources.values()
        for row, verdict in zip(source.rows.rows, source.rows.verdict, strict=True)
        if verdict != "fits"
    }
    return {"scores": scores, "bars": judged, "verdicts": verdicts}


def write_baseline(state: State) -> None:
    """Makes this state the accepted one."""
    BASELINE.write_text(json.dumps(snapshot(state), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{BASELINE.relative_to(ROOT)} written")


def read_baseline() -> dict[str, Any]:
    """The accepted state."""
    accepted: dict[str, Any] = json.loads(BASELINE.read_text(encoding="utf-8"))
    return accepted


def drifts(accepted: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """One line for each score or bar that moved by more than DRIFT, better or worse."""
    pairs = [(f"bar {name}", value, now["bars"].get(name)) for name, value in accepted["bars"].items()]
    pairs += [
        (f"{source} {name}", value, now["scores"].get(source, {}).get(name))
        for source, scores in accepted["scores"].items()
        for name, value in scores.items()
    ]
    for name, was, is_now in pairs:
        if is_now is not None and abs(is_now - was) > DRIFT:
            yield f"{name}: {was:.4g} -> {is_now:.4g}"


def turned(accepted: Mapping[str, Any], state: State) -> Iterator[str]:
    """Rows that ran and newly count as `oom`, and rows measured out of memory that newly count as `fits`."""
    for source in state.sources.values():
        table = source.rows
        for row, verdict, ran, oom in zip(table.rows, table.verdict, table.ran, table.out_of_memory, strict=True):
            was = accepted["verdicts"].get(row["id"], "fits")
            if ran and verdict == "oom" and was != "oom":
                yield f"{row['id']} ran, was {was}, is now oom"
            if oom and verdict == "fits" and was != "fits":
                yield f"{row['id']} ran out of memory, was {was}, is now fits"
