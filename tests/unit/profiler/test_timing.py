"""What the stopwatch does around a call, how blocks become one timing, and how long the launcher has been at work, which the budget covers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from profiler.timing import FULL, QUICK, TINY, Effort, Stopwatch, Timing, launched_s, pooled, summary

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


# --- the stopwatch ----------------------------------------------------------------------------------------------------


class Device:
    """A device that runs each call in the same time. It notes the calls of every run between two events, and what it spun."""

    type = "cuda"

    def __init__(self, each_ms: float) -> None:
        self.each_ms = each_ms
        self.calls: list[int] = []
        self.runs: list[list[int]] = []
        self.spun: list[int] = []
        self.cuda = SimpleNamespace(
            Event=lambda *, enable_timing: Event(self), synchronize=lambda: None, _sleep=self.spun.append
        )


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.before = device, -1

    def record(self) -> None:
        self.before = len(self.device.calls)

    def synchronize(self) -> None: ...

    def elapsed_time(self, after: Event) -> float:
        self.device.runs.append(self.device.calls[self.before : after.before])
        return len(self.device.runs[-1]) * self.device.each_ms


EFFORT = Effort(block_s=0.010, blocks=4, warm_s=0.025, settle_s=0.060)


def measured_on(each_ms: float) -> tuple[Device, Timing]:
    device = Device(each_ms)
    return device, Stopwatch(device, device).measure(device.calls.append, effort=EFFORT)


def test_two_calls_load_everything_two_give_a_rough_time_and_a_warm_up_a_better_one() -> None:
    """Calls of 2 ms are long, so that 60 ms warm up: 30 calls. A block of 10 ms holds five, and every block begins behind
    the one before, so that buffers rotate on.
    """
    device, timing = measured_on(2.0)
    assert device.calls[:2] == [0, 1]
    assert device.runs == [[2, 3], list(range(4, 34)), *([5 * block + i for i in range(5)] for block in range(4))]
    assert (timing.time_s, timing.calls, len(timing.block_s)) == (pytest.approx(2e-3), 5, 4)
    assert device.spun == []


@pytest.mark.parametrize(
    ("each_ms", "warm", "calls", "spun"),
    [
        (1.0, 60, 10, 0),
        (0.5, 120, 20, 0),  # longer than 0.4 ms: 60 ms of warm-up
        (0.4, 63, 25, 0),  # 25 ms
        (0.25, 100, 40, 0),
        (0.2, 125, 50, 0),  # not yet short
        (0.16, 48, 48, 4),  # shorter than 0.2 ms: 48 are queued at a time, although 10 ms would hold 63
        (0.1, 48, 48, 4),
        (20.0, 3, 1, 0),
        (1000.0, 1, 1, 0),
    ],
)
def test_the_number_of_calls_follows_their_length(each_ms: float, warm: int, calls: int, spun: int) -> None:
    device, timing = measured_on(each_ms)
    assert [len(run) for run in device.runs] == [2, warm, *[calls] * 4]
    assert timing.calls == calls
    assert len(device.spun) == spun, (
        "the device waits for the host before each block of short calls, and before no other"
    )


def test_the_device_spins_for_as_long_as_a_slow_host_needs_to_issue_all_calls() -> None:
    """48 calls of 150 us at 1.9 GHz, the highest clock of an H100: 13.68 million cycles."""
    device, _ = measured_on(0.1)
    assert set(device.spun) == {13_680_000}


def test_all_processes_count_by_the_slowest_and_come_together_before_every_block() -> None:
    """This rank's calls take 1 ms, those of the slowest 2.5 ms: 24 calls warm up, four make a block."""
    device, met = Device(1.0), []

    def together(seconds: float) -> float:
        return 2.5 * seconds

    watch = Stopwatch(device, device)
    watch.measure(device.calls.append, effort=EFFORT, together=together, align=lambda: met.append(len(device.calls)))
    assert [len(run) for run in device.runs] == [2, 24, 4, 4, 4, 4]
    assert met == [2, 4, 28, 32, 36, 40]


class Processor:
    """A processor whose clock moves with each call alone."""

    type = "cpu"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each_s: float) -> None:
        self.now_s, self.each_s, self.calls = 0.0, each_s, list[int]()
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)

    def call(self, index: int) -> None:
        self.now_s += self.each_s
        self.calls.append(index)


def test_a_processor_makes_two_thousand_calls_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 ms would hold 5,000 calls of 2 us, and a warm-up of 25 ms 12,500."""
    processor = Processor(monkeypatch, 2e-6)
    timing = Stopwatch(None, processor).measure(processor.call, effort=EFFORT)
    assert (timing.calls, timing.time_s) == (2000, pytest.approx(2e-6))
    assert len(processor.calls) == 2 + 2 + 2000 + 4 * 2000
    assert processor.calls[2004:] == list(range(8000))


def test_the_host_is_timed_over_blocks_of_calls_after_three_to_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = Processor(monkeypatch, 3e-3)
    timing = Stopwatch(None, processor).host_seconds(processor.call, calls=4)
    assert processor.calls == [0, 1, 2, *5 * [0, 1, 2, 3]]
    assert (timing.time_s, timing.calls, len(timing.block_s)) == (pytest.approx(3e-3), 4, 5)
    assert len(Stopwatch(None, processor).host_seconds(processor.call, calls=1, blocks=3).block_s) == 3


def test_what_must_not_be_repeated_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = Processor(monkeypatch, 0.25)
    assert Stopwatch(None, processor).elapsed(processor.call, calls=3) == 0.25
    assert processor.calls == [0, 1, 2]


def test_a_measurement_takes_its_warm_up_and_its_blocks() -> None:
    """10 + 5 x 10 ms, 25 + 5 x 20 ms, and on a processor 1 + 3 x 2 ms, the fewest blocks that have a spread."""
    assert [effort.expected_s for effort in (QUICK, FULL, TINY)] == [pytest.approx(s) for s in (0.060, 0.125, 0.007)]
    assert (QUICK.blocks, FULL.blocks, TINY.blocks) == (5, 5, 3)
    assert TINY.warm_s == pytest.approx(0.001)


def test_calls_that_draw_much_power_warm_up_longer_and_are_measured_again_and_again() -> None:
    """Until the clock has settled at its power limit, and with others in between; a processor has neither."""
    assert (QUICK.settle_s, FULL.settle_s, TINY.settle_s) == (0.04, 0.06, 0.0)
    assert (QUICK.passes, FULL.passes, TINY.passes) == (2, 4, 1)
