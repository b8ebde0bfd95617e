"""A launcher of trials that trains nothing: it takes the place of `srun` for agents in tests, and writes a record of made-up steps.

    python tests/stand_in_trial.py RUNS.jsonl SECONDS …command that would run the trial…

A step takes as long as `step_time_of` says, and what tensor parallelism is asked of runs out of memory. It notes in RUNS when a trial
begins and when its record is written. SECONDS that are negative fail as a machine does whose GPUs are in use.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def step_time_of(strategy: Mapping[str, Any]) -> float:
    """Seconds of a step: pipelines and sharding cost, and larger micro batches save."""
    pp, zero, micro_batch_size = (int(strategy[name]) for name in ("pp", "zero", "micro_batch_size"))
    return 0.8 * (1.0 + 0.1 * (pp - 1) + 0.02 * zero) / (1.0 + 0.01 * micro_batch_size)


def record_of(what: Mapping[str, Any], took_s: float) -> dict[str, Any]:
    """The record of a trial as JSON, from what the program that runs trials is told."""
    is_measured = what["row"]["strategy"]["tp"] == 1
    step_s = step_time_of(what["row"]["strategy"])
    return {
        "row": what["row"],
        "backend": what["backend"],
        "status": "ok" if is_measured else "oom",
        "reason": None if is_measured else "CUDA out of memory. Tried to allocate 2.00 GiB",
        "step_time_s": step_s if is_measured else None,
        "step_s": [step_s] * 6 if is_measured else [],
        "peak_allocated_bytes": 30 << 30,
        "peak_reserved_bytes": 32 << 30,
        "peak_device_bytes": 33 << 30,
        "ranks": [],
        "terms_s": None,
        "extrapolated": None,
        "took_s": took_s,
        "gpu_seconds": took_s * what["gpus"],
        "machine": {"gpu": "H200-SXM-141GB", "gpus": what["gpus"]},
        "started_at": "2026-11-29T12:00:00Z",
    }


def main() -> None:
    runs, seconds, arguments = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    out = Path(next(each for each in arguments if each.startswith("--out=")).removeprefix("--out="))
    # The name of the file ends with the number of the attempt.
    trial = out.stem.rpartition("-")[0]
    what = json.loads(Path(arguments[-2]).read_text(encoding="utf-8"))

    def note(event: str) -> None:
        with runs.open("a") as file:
            file.write(json.dumps({"event": event, "trial": trial, "strategy": what["row"]["strategy"]}) + "\n")

    note("begun")
    if seconds < 0:
        sys.stderr.write("error: GPU 1 is used by other processes\n  Wait for them to end.\n")
        sys.exit(5)
    time.sleep(seconds)
    written = out.with_suffix(".writing")
    written.write_text(json.dumps(record_of(what, max(seconds, 0.01))))
    written.rename(out)
    note("written")


if __name__ == "__main__":
    main()
