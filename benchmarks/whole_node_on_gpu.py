"""Measures a whole node in one call: python -m benchmarks.whole_node_on_gpu ROWS.jsonl OUT --profiles 2 [--budget 1500]

1. `meshwright profile run` over all GPUs that are visible, `profile_1.json` and so on.
2. What the rows will take, priced with the first profile alone, in `predictions.jsonl`: before any of them has run.
3. The rows as trials, in `trials.jsonl`, until the budget is spent; what no longer fits is left out and says so.

A second call with `--from OUT` of the first one runs what that left out, and prices it with the profile that is there. Everything is on
disk as soon as it is known. `about.json` says what the machine is and when each part began.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.record import commit, machine_description
from benchmarks.trials import answer, told
from cost_models.hardware import read_document
from planner.rows import evaluate_rows

_SHORTEST_S = 15.0
ASKED = ("id", "model", "cluster", "training", "strategy")


def main() -> None:
    """Runs the three parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--profiles", type=int, default=2, help="profiles to measure, 0 for none")
    parser.add_argument("--first-profile", type=int, default=1, help="number of the first of them")
    parser.add_argument("--profile-budget", default="5m", help="of each profile")
    parser.add_argument("--from", dest="earlier", type=Path, help="what an earlier call wrote")
    parser.add_argument("--budget", type=float, default=1500.0, help="seconds of everything together")
    parser.add_argument("--deadline", type=float, default=90.0, help="seconds of one trial")
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--allow-busy", action="store_true")
    arguments = parser.parse_args()
    end_at = time.monotonic() + arguments.budget
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in arguments.rows.read_text(encoding="utf-8").splitlines()]
    gpus = rows[0]["cluster"]["gpus_per_node"]
    _tell(arguments.out, "began", {"commit": commit(), "gpus": gpus, **machine_description()})
    first = arguments.first_profile
    for number in range(first, first + arguments.profiles):
        _profile(arguments.out / f"profile_{number}.json", gpus, arguments)
        _tell(arguments.out, f"profile_{number}", {})
    known = _known(arguments.earlier)
    left = [row for row in rows if row["id"] not in known]
    _predict(left, arguments)
    _tell(arguments.out, "predictions", {"rows": len(left)})
    with (arguments.out / "trials.jsonl").open("a", encoding="utf-8") as out:
        for row in left:
            left_s = end_at - time.monotonic()
            found = {"id": row["id"], "left_out": True} if left_s < _SHORTEST_S else answer(row, arguments, left_s)
            print(json.dumps(found), file=out, flush=True)
            print(told(row["id"], found), flush=True)
    _tell(arguments.out, "ended", {})


def _tell(folder: Path, part: str, facts: Mapping[str, Any]) -> None:
    with (folder / "about.jsonl").open("a", encoding="utf-8") as file:
        print(json.dumps({"part": part, "at": datetime.now(UTC).isoformat(timespec="seconds"), **facts}), file=file)
    print(f"{part} at {datetime.now(UTC):%H:%M:%S}", flush=True)


def _profile(out: Path, gpus: int, arguments: argparse.Namespace) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus),
        "-m", "meshwright", "profile", "run", "--out", str(out), "--budget", arguments.profile_budget, "--fresh",
    ]  # fmt: skip
    if arguments.device == "cpu":
        command += ["--device", "cpu"]
    began = time.monotonic()
    # A group of its own, so that no rank outlives a profile that hangs: its memory would be missing in every trial.
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            process.wait(timeout=arguments.budget)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    print(f"{out.name}: exit status {process.returncode} after {time.monotonic() - began:.0f} s", flush=True)


def _known(earlier: Path | None) -> set[str]:
    """Names of the rows that an earlier call has answered."""
    if earlier is None:
        return set()
    lines = [json.loads(line) for line in (earlier / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["row"]["id"] for line in lines if line.get("status") == "ok"}


def _predict(rows: Sequence[Mapping[str, Any]], arguments: argparse.Namespace) -> None:
    folders = [arguments.out, *([arguments.earlier] if arguments.earlier else [])]
    profiles = [path for folder in folders for path in sorted(folder.glob("profile_*.json"))]
    # The first profile of all: what a later one knows came after some of the trials.
    chosen = min(profiles, key=lambda path: path.name, default=None)
    asked = [{name: row[name] for name in ASKED} for row in rows]
    answers = evaluate_rows(asked, calibration=str(chosen) if chosen else None, allow_files=True)
    document = read_document(chosen).id if chosen else None
    with (arguments.out / "predictions.jsonl").open("a", encoding="utf-8") as file:
        for found in answers:
            print(json.dumps({"profile": document, "answer": found}), file=file, flush=True)


if __name__ == "__main__":
    main()
