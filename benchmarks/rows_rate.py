"""Rows per second of the JSON-lines `evaluate`, text in and text out. Run: python benchmarks/rows_rate.py.

Rows differ in their strategy and share a few jobs, as those of a sweep do. Every answer is serialised.
"""

from __future__ import annotations

import itertools
import json
import time

from benchmarks.record import ROOT, record
from planner.rows import evaluate_rows

NUM_ROWS = 2000
GOAL = ">= 1000"


def rows(*, num_rows: int = NUM_ROWS) -> list[str]:
    """JSON lines: the rows of the example file with other micro-batches and batch sizes."""
    lines = (ROOT / "examples" / "requests" / "evaluate.jsonl").read_text().splitlines()
    valid = [row for row in map(json.loads, lines) if row["strategy"]["tp"] < 3]
    made = []
    for index, row in zip(range(num_rows), itertools.cycle(valid), strict=False):
        training = {**row["training"], "global_batch_size": 128 * (1 + index % 4)}
        strategy = {**row["strategy"], "micro_batch_size": 1 + index % 2}
        made.append(json.dumps({**row, "id": f"row-{index}", "training": training, "strategy": strategy}))
    return made


def rate(*, num_rows: int = NUM_ROWS) -> float:
    """Rows per second, best of three."""
    lines = rows(num_rows=num_rows)
    best_s = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        answers = [json.dumps(evaluation) for evaluation in evaluate_rows(lines)]
        best_s = min(best_s, time.perf_counter() - begin)
        assert len(answers) == num_rows
    return num_rows / best_s


if __name__ == "__main__":
    record("rows_rate", value=rate(), unit="rows/s", goal=GOAL, rows=NUM_ROWS)
