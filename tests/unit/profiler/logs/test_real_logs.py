"""Logs that real runs printed (`scripts/log_samples.py`), read beside the seconds that the run's own script saw on its clock."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from profiler.logs.read import read_log
from profiler.logs.reading import LogReading

REAL = Path(__file__).parent / "real"
GIB = 2.0**30


def read(name: str, framework: str, *, world: int = 1, **options: Any) -> LogReading:
    training = {"seq_length": 64, "global_batch_size": 4, "framework": framework}
    row = {"training": training, "strategy": {"dp": 1, "tp": world}}
    with (REAL / name).open("rb") as file:
        return read_log(file, row=row, **options)


def seen_s(name: str) -> float:
    """Median seconds of the steps after the first four, on the clock of the script."""
    return statistics.median(json.loads((REAL / f"{name}.seconds.json").read_text())["seconds"][4:])


@pytest.mark.parametrize(
    ("log", "name", "framework", "kind", "steps"),
    [
        ("trainer.log", "trainer", "fsdp", "interval_mean", 8),
        ("trainer_state.json", "trainer", "fsdp", "interval_mean", 8),
        ("deepspeed.log", "deepspeed", "deepspeed", "step", 7),  # its timer starts with the third step
    ],
)
def test_what_a_program_printed_is_what_a_clock_beside_it_saw(
    log: str, name: str, framework: str, kind: str, steps: int
) -> None:
    reading = read(log, framework)
    assert (reading.kind, reading.num_steps) == (kind, steps)
    assert reading.step_time_s == pytest.approx(seen_s(name), rel=0.1)
    assert not set(reading.flags) & {"runs-differ", "warm-up-only", "different-batch", "unclear-numbers"}


def test_torchtitans_rate_is_that_of_one_of_two_ranks() -> None:
    """The run had 256 tokens a step, which two ranks shared."""
    reading = read("torchtitan.log", "torchtitan", world=2)
    assert reading.step_time_s == pytest.approx(seen_s("torchtitan"), rel=0.02)
    assert (reading.kind, reading.digits, reading.num_steps) == ("interval_mean", 4, 11)
    assert (reading.memory_counter, reading.memory_bytes) == ("reserved", 12.34 * GIB)
    assert reading.lines[0].startswith("[titan] 2026-11-29")
    assert "\x1b" not in reading.lines[0]


def test_the_printed_entries_and_the_state_say_the_same() -> None:
    printed, state = read("trainer.log", "fsdp"), read("trainer_state.json", "fsdp")
    assert (printed.format, state.format) == ("transformers", "trainer-state")
    # Four significant digits of up to 1.7 s against four decimals, over intervals of two steps.
    assert printed.step_time_s == pytest.approx(state.step_time_s, abs=0.5e-3)
    assert state.resolution_fraction == pytest.approx(0.5e-4 / state.step_time_s)


def test_deepspeeds_parts_are_less_than_its_steps() -> None:
    """The engine's timer also sees what lies between forward, backward and step."""
    steps, parts = read("deepspeed.log", "deepspeed"), read("deepspeed.log", "deepspeed", format="deepspeed-breakdown")
    assert 0.85 * steps.step_time_s < parts.step_time_s < steps.step_time_s
    assert parts.flags == ("sum-of-parts",)
    assert steps.memory_bytes == 0.33 * GIB
