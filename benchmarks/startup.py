"""Seconds of `meshwright plan` as a whole process: interpreter, imports, search, table. Run: python benchmarks/startup.py."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from benchmarks.record import ROOT, record

REQUEST = ROOT / "examples" / "requests" / "llama-3.1-70b.json"
GOAL = "<= 1.5"


def seconds(*, repeats: int = 7) -> float:
    """Median wall seconds of one process that plans the example request."""
    command = [sys.executable, "-m", "meshwright", "plan", str(REQUEST)]
    times = []
    # The first run also reads the files from the disk; the median of seven leaves it out.
    for _ in range(repeats):
        begin = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


if __name__ == "__main__":
    record("startup", value=seconds(), unit="s", goal=GOAL, request=REQUEST.name)
