"""How blocks become one timing, and how long the launcher has been at work, which the budget covers."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from profiler.timing import launched_s, pooled, summary

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


def test_several_passes_are_one_timing_of_all_their_blocks() -> None:
    """A clock that wanders: 10, 11 and 12 s in one pass, 20, 21 and 25 s in the other. The middle of all six is (12 + 20) / 2 = 16,
    the quartiles 11.25 and 20.75; the fastest alone would say 10, the passes' medians 11 and 21.
    """
    found = pooled([summary([12.0, 10.0, 11.0], calls=3), summary([20.0, 25.0, 21.0], calls=5)])
    assert found.time_s == 16.0
    assert found.spread_fraction == pytest.approx((20.75 - 11.25) / 2 / 16)
    assert sorted(found.block_s) == [10.0, 11.0, 12.0, 20.0, 21.0, 25.0]
    assert found.calls == 3


def test_two_blocks_have_no_spread() -> None:
    assert summary([1.0, 3.0], calls=1).spread_fraction == 0.0
    assert summary([1.0, 2.0, 3.0], calls=1).spread_fraction == pytest.approx((2.5 - 1.5) / 2 / 2)
