"""Errors of the steady rows of our own machine, priced with reference data and with our agent's calibration of such a machine.

    python -m benchmarks.steady_rows [CALIBRATION]

A row is steady if its fastest and its slowest step are within 6 % of the median one. Prints errors of step time and of allocated
memory.
"""

from __future__ import annotations

import sys

from benchmarks.accuracy.measured_rows import Json, evaluations, read_rows
from cost_models.units import GIB

SOURCE = "own_tt"
CALIBRATION = "h100x4-nvls-off-2026-11-28"
# The machine was shared. Rows that were disturbed would measure its other users, and above 6 % most are.
STEADY = 0.06


def steady_rows() -> list[Json]:
    """Rows that ran with little spread."""
    return [row for row in read_rows()[SOURCE] if _spread(row["measured"]) <= STEADY]


def _spread(measured: Json) -> float:
    if not measured.get("step_time_s") or not measured.get("step_time_range_s"):
        return float("inf")
    fastest, slowest = measured["step_time_range_s"]
    return float(max(slowest / measured["step_time_s"] - 1.0, 1.0 - fastest / measured["step_time_s"]))


def main() -> None:
    """Prints a line for each calibration."""
    rows = steady_rows()
    for calibration in (None, sys.argv[1] if len(sys.argv) > 1 else CALIBRATION):
        times, memory = [], []
        for row, found in zip(rows, evaluations(rows, calibration=calibration), strict=True):
            measured = row["measured"]
            times.append(abs(found["step_time_s"] / measured["step_time_s"] - 1.0))
            if measured.get("memory_kind") == "allocated":
                memory.append(abs(found["memory"]["peak_allocated_bytes"] / GIB / measured["peak_memory_gib"] - 1.0))
        print(
            f"{calibration or 'reference data'}: {len(times)} rows, time error {100 * sum(times) / len(times):.1f} %, "
            f"largest {100 * max(times):.1f} %; allocated of {len(memory)} rows, largest error {100 * max(memory):.2f} %"
        )


if __name__ == "__main__":
    main()
