"""Runs evaluate rows as trials on this machine's GPUs: python -m benchmarks.trials ROWS.jsonl OUT.jsonl [--budget 330] [--rounds 1]

A row with `launch`, a folder beside the rows, is run by the launch files in it with the words of `options`, every other one with PyTorch's own parallelism; one with
`layers_run`, two numbers, is drawn on from two smaller models. Each is answered by a line with its trial record as soon as it has
ended. A row that cannot be run is answered by the reason, and one that no longer fits into the budget is left out, and says so.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cost_models.errors import MeshwrightError
from profiler.trial.exported import run_export
from profiler.trial.launch import run_trial
from profiler.trial.record import TrialRecord
from profiler.trial.smaller import extrapolated, smaller_row

_SHORTEST_S = 15.0
"""A trial is not begun with less than this left: starting alone takes as long."""
_OF_THE_RUN = ("launch", "options", "layers_run", "group")


def main() -> None:
    """Runs the rows in order, as many rounds as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path, help="records are added to it")
    parser.add_argument("--budget", type=float, default=330.0, help="seconds of all trials together")
    parser.add_argument("--deadline", type=float, default=75.0, help="seconds of one trial")
    parser.add_argument("--rounds", type=int, default=1, help="times that each row is run")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--allow-busy", action="store_true")
    arguments = parser.parse_args()
    end_at = time.monotonic() + arguments.budget
    rows = [json.loads(line) for line in arguments.rows.read_text().splitlines()]
    with arguments.out.open("a") as out:
        for row in rows * arguments.rounds:
            left_s = end_at - time.monotonic()
            found = {"id": row["id"], "left_out": True} if left_s < _SHORTEST_S else answer(row, arguments, left_s)
            print(json.dumps(found), file=out, flush=True)
            print(told(row["id"], found), flush=True)


def told(name: str, found: Mapping[str, Any]) -> str:
    """A line about a record."""
    fields = found.get("status", "left out"), found.get("reason") or found.get("step_time_s"), found.get("took_s")
    return " ".join(map(str, (name, *fields, found.get("terms_s"), found.get("notes"))))


def answer(row: Mapping[str, Any], arguments: argparse.Namespace, left_s: float) -> dict[str, Any]:
    """The trial record of a row, or why it was not run."""
    try:
        return _trial(row, arguments, min(arguments.deadline, left_s)).to_json()
    except MeshwrightError as error:
        return {"id": row["id"], "status": "refused", "reason": error.message, "hint": error.hint}


def _trial(row: Mapping[str, Any], arguments: argparse.Namespace, deadline_s: float) -> TrialRecord:
    how = {
        "deadline_s": deadline_s, "device": arguments.device, "allow_busy": arguments.allow_busy,
        "warm_up": arguments.warm_up, "steps": arguments.steps,
    }  # fmt: skip
    asked = {name: value for name, value in row.items() if name not in _OF_THE_RUN}
    if "launch" in row:
        return run_export(arguments.rows.parent / row["launch"], asked, options=row.get("options", ()), **how)
    if "layers_run" in row:
        first, second = (run_trial(smaller_row(asked, layers=layers), **how) for layers in row["layers_run"])
        return extrapolated(asked, first, second)
    return run_trial(asked, **how)


if __name__ == "__main__":
    main()
