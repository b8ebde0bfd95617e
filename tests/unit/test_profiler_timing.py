"""How long the launcher has been at work, which the budget covers."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from profiler.timing import launched_s

SAY = "from profiler.timing import launched_s; print(launched_s())"


def test_alone_nobody_launched_it(monkeypatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launched_s() == 0.0


def test_under_torchrun_the_time_counts_from_the_launcher() -> None:
    """The parent here is a Python that waits 0.3 s before it starts the child."""
    parent = (
        f"import subprocess, sys, time; time.sleep(0.3); subprocess.run([sys.executable, '-c', {SAY!r}], check=True)"
    )
    before = time.perf_counter()
    said = subprocess.run(
        [sys.executable, "-c", parent],
        env={**os.environ, "TORCHELASTIC_RUN_ID": "x"},
        capture_output=True,
        text=True,
        check=True,
    )
    whole = time.perf_counter() - before
    assert 0.28 <= float(said.stdout) <= whole + 0.02
