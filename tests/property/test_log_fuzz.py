"""Whatever a log holds, reading it gives numbers that were printed, or says that there are none."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cost_models.errors import InvalidInputError
from cost_models.frameworks import FRAMEWORKS
from profiler.logs.read import read_log

LINES = (
    " iteration       10/     500 | elapsed time per iteration (ms): 1234.5 | global batch size:    16 | lm loss: 8.1E+00 |",
    "[Rank 0] (after 10 iterations) memory (MB) | allocated: 9.5 | max allocated: 2048.5 | reserved: 30 | max reserved: 4096.0",
    "Step Time : 2.34s GPU utilization: 412.3MODEL_TFLOP/s/GPU",
    "mem-max-allocated-gigabytes: 153.4 | mem-max-reserved-gigabytes: 182.2 |",
    "Training epoch 0, iteration 1/249 | global_step: 1 | global_batch_size: 16 | train_step_timing in s: 7.126 | x: 1",
    "[rank0]:step: 10  loss: 7.6  memory: 45.67GiB(32.71%)  tps: 8,192  tflops: 412.34",
    "epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=7.9, CurrSamplesPerSec=8.0, MemAllocated=6.01GB, MaxMemAllocated=19.5GB",
    "steps: 10 loss: 7.1234 iter time (s): 0.123 samples/sec: 130.219",
    "time (ms) | fwd: 100.00 | bwd: 200.50 | step: 50.25",
    "{'loss': '7.1', 'num_input_tokens_seen': 65536, 'train_runtime': '40.5'}",
    "{'train_runtime': 120.1, 'train_samples_per_second': 5.3, 'train_steps_per_second': 0.3}",
    "[batch=10/100]:", "\t Train throughput/batches_per_sec: 0.4878", "\t Train throughput/samples_per_sec: 7.8049",
    "iteration: 3 / 100 | time_per_iteration_ms: 1.26K | tokens_per_sec: 52.4K",
    " Memory usage: 1000.00MiB. Peak allocated 2048.00MiB. Peak reserved: 3072.00MiB",
    '{"step": 4, "seconds": 1.5, "peak_allocated_bytes": 1000, "peak_reserved_bytes": 2000}',
    "step 4: 0.9123 s, peak allocated 67.60 GiB, peak reserved 78.70 GiB",
    '{"step_time_s": 1.25}', '{"log_history": [{"step": 3, "train_runtime": 4.5}]}',
)  # fmt: skip
"""One line of every kind."""
TYPED = st.sampled_from(
    [
        "",
        "0",
        "1e999",
        "-1",
        "NaN",
        "9" * 50,
        "1,234",
        "1.2.3",
        "\x00",
        "\x1b[",
        "'",
        '"',
        "{",
        "}",
        "|",
        ":",
        "\r",
        "\ufeff",
    ]
)


@st.composite
def logs(draw: st.DrawFn) -> str:
    """Lines of several programs, each changed in a few places: cut, doubled, with other texts inside."""
    lines = []
    for original in draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=12)):
        changed = original
        for _ in range(draw(st.integers(0, 3))):
            start = draw(st.integers(0, len(changed)))
            end = draw(st.integers(start, min(len(changed), start + 8)))
            changed = changed[:start] + draw(TYPED | st.text(max_size=5)) + changed[end:]
        lines.append(changed)
    return draw(st.sampled_from(["\n", "\r\n", "\r"])).join(lines) + draw(st.sampled_from(["", "\n"]))


def check(text: str, framework: str) -> None:
    row: dict[str, Any] = {
        "training": {"seq_length": 4096, "global_batch_size": 16, "framework": framework}, "strategy": {"tp": 2, "dp": 4},
    }  # fmt: skip
    try:
        reading = read_log(text, row=row)
    except InvalidInputError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert all(problem.message and problem.hint for problem in refused.problems)
        return
    numbers = [reading.step_time_s, reading.resolution_fraction, *reading.samples_s, *reading.peaks_bytes.values()]
    assert all(math.isfinite(number) and number > 0.0 for number in numbers)
    assert min(reading.samples_s) <= reading.step_time_s <= max(reading.samples_s)
    assert any(character.isdigit() for character in text)
    assert reading.num_steps >= 1
    assert reading.digits >= 1


ANY = st.sampled_from(sorted(FRAMEWORKS))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(logs(), ANY)
def test_changed_logs_are_read_or_refused(text: str, framework: str) -> None:
    check(text, framework)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=400))
def test_bytes_are_read_or_refused(data: bytes) -> None:
    check(data.decode("utf-8", errors="replace"), "fsdp")


@pytest.mark.proof
@pytest.mark.slow
@settings(max_examples=5_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(logs(), ANY)
def test_thousands_of_changed_logs_are_read_or_refused(text: str, framework: str) -> None:
    check(text, framework)
