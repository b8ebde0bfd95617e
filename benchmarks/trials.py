"""Runs evaluate rows as trials on this machine's GPUs: python -m benchmarks.trials ROWS.jsonl OUT.jsonl [--budget 480]

Each row is answered by a line with what was measured, or how the trial ended, as soon as it has. Rows that no longer fit into the
budget are left out, and the file says so on its last line.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from profiler.trial.launch import run_trial


def main() -> None:
    """Runs the rows in order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget", type=float, default=480.0, help="seconds of all trials together")
    parser.add_argument("--deadline", type=float, default=75.0, help="seconds of one trial")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    end_at = time.monotonic() + arguments.budget
    with arguments.out.open("w") as out:
        for line in arguments.rows.read_text().splitlines():
            row = json.loads(line)
            left_s = end_at - time.monotonic()
            if left_s < 20.0:
                print(json.dumps({"id": row["id"], "left_out": True}), file=out, flush=True)
                continue
            strategy = row["strategy"]
            world = strategy["tp"] * strategy["pp"] * strategy["dp"]
            trial = run_trial(
                row,
                world=world,
                deadline_s=min(arguments.deadline, left_s),
                device=arguments.device,
                warm_up=4,
                steps=6,
            )
            found = trial.to_json()
            print(json.dumps(found), file=out, flush=True)
            print(row["id"], trial.status, trial.reason or trial.step_time_s, round(trial.took_s, 1), flush=True)


if __name__ == "__main__":
    main()
