"""Predictions of the runs with other optimizers, hybrids, towers and documents: python -m benchmarks.wider_runs_check

Prices the rows of data/measured_h200/wider_rows.jsonl as a user without a profile would and as one with that of this kind of machine,
prints every row, and writes benchmarks/results/wider_runs.json. Held against: memory within 4 %, time within 12 % on average, and three
quarters of the complete rows inside their range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.accuracy.measured_rows import evaluations
from benchmarks.accuracy.own_runs import PROFILE
from benchmarks.record import ROOT, record

ROWS = ROOT / "data" / "measured_h200" / "wider_rows.jsonl"
_GOAL = "memory <= 4 %, time <= 12 %, inside >= 75 %"


def main() -> None:
    """Prints both tables and records the means."""
    rows = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    found = {}
    for name, calibration in (("without a profile", None), ("with a profile", PROFILE)):
        print(name)
        lines = [
            _line(row, answer) for row, answer in zip(rows, evaluations(rows, calibration=calibration), strict=True)
        ]
        for line in lines:
            print("  ", json.dumps(line))
        priced = [line for line in lines if line["complete"] and line["verdict"] != "invalid"]
        found[name] = {**_means(priced), "refused": sum(line["verdict"] == "invalid" for line in lines), "rows": lines}
    plain = found["without a profile"]
    record("wider_runs", value=100 * plain["time_error"], unit="% mean error of step time", goal=_GOAL, **found)


def _line(row: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    measured = row["measured"]
    line = {
        "run": row["notes"].split(";")[0],
        "id": row["id"],
        "complete": row["complete"],
        "verdict": answer["verdict"],
    }
    if answer["verdict"] == "invalid":
        return {**line, "reasons": [reason["message"] for reason in answer["reasons"]]}
    low, high = answer["step_time_range_s"]
    bytes_ = answer["memory"]["peak_allocated_bytes"]
    return {
        **line,
        "time_error": round(answer["step_time_s"] / measured["step_time_s"] - 1, 4),
        "inside": low <= measured["step_time_s"] <= high,
        "memory_error": round(bytes_ / 2**30 / measured["peak_memory_gib"] - 1, 4),
        "update_ms": round(1e3 * measured["update_s"], 1),
        "update_predicted_ms": round(1e3 * answer["time_breakdown_s"]["optimizer"], 1),
        "parameters_off": answer["num_parameters"] - measured["parameters"],
    }


def _means(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {
        "complete_rows": len(lines),
        "time_error": round(fmean(abs(line["time_error"]) for line in lines), 4),
        "inside": round(fmean(line["inside"] for line in lines), 4),
        "memory_error": round(fmean(abs(line["memory_error"]) for line in lines), 4),
    }


if __name__ == "__main__":
    main()
