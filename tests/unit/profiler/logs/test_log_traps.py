"""What logs are like in practice: several ranks and runs in one file, cut, binary, huge, of another program, with other commas."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from cost_models.errors import InvalidInputError
from profiler.logs.read import read_log

MEGATRON = {"training": {"seq_length": 4096, "global_batch_size": 16, "framework": "megatron"}, "strategy": {"dp": 1}}
TITAN = {"training": {"seq_length": 4096, "global_batch_size": 16, "framework": "torchtitan"}, "strategy": {"dp": 8}}


def line(step: int, shown: str) -> str:
    return f" iteration {step:8d}/     500 | elapsed time per iteration (ms): {shown} | global batch size:    16 | lm loss: 8.1E+00 |\n"


def titan(step: int, tps: str) -> str:
    return f"[titan] 2026-11-29 10:00:00,123 - root - INFO - step: {step}  loss: 7.1  memory: 45.67GiB(32.71%)  tps: {tps}  mfu: 41.69%\n"


def refusal(text: Any, row: dict[str, Any], **options: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        read_log(text, row=row, **options)
    (problem,) = caught.value.problems
    assert problem.hint
    return f"{problem.pointer}: {problem.message}"


def test_carriage_returns_colours_and_labels_are_not_part_of_a_line() -> None:
    text = "".join(line(i, "1000.0").replace("\n", "\r\n") for i in range(1, 5))
    labelled = "".join(f"{rank}: \x1b[1m{line(i, f'100{rank}.0')}" for i in range(1, 9) for rank in (0, 1))
    assert read_log(text, row=MEGATRON).step_time_s == 1.0
    assert read_log(text.encode().splitlines(keepends=True), row=MEGATRON).step_time_s == 1.0
    # Two ranks print the same steps: eight steps, of which the slower rank's time counts.
    reading = read_log(labelled, row=MEGATRON)
    assert (reading.step_time_s, reading.num_steps) == (1.001, 5)


def test_the_ranks_label_says_whose_memory_it_is() -> None:
    text = "".join(f"[rank{rank}]:{titan(i, '8,192')}" for i in range(1, 9) for rank in (0, 3))
    assert read_log(text, row=TITAN).memory_rank == "worst"
    assert read_log("".join(f"[rank3]:{titan(i, '8,192')}" for i in range(1, 9)), row=TITAN).memory_rank == 3


def test_a_resumed_run_is_one_run() -> None:
    text = "".join(line(i, "1000.0") for i in range(10, 60, 10)) + line(35, "30000.0")
    text += "".join(line(i, "1001.0") for i in range(45, 100, 10))
    reading = read_log(text, row=MEGATRON)
    # The slow first interval after the restart is left out, as that of the first start is: four and six intervals are left.
    assert reading.flags == ("resumed",)
    assert (reading.num_steps, reading.step_time_s) == (100, 1.001)


def test_two_runs_of_one_plan_are_taken_together_and_different_ones_are_not() -> None:
    first = "".join(line(i, "1000.0") for i in range(1, 10))
    again = "".join(line(i, "1004.0") for i in range(1, 10))
    slower = "".join(line(i, "1500.0") for i in range(1, 10))
    together = read_log(first + again, row=MEGATRON)
    assert (together.flags, together.step_time_s) == (("several-runs",), pytest.approx(1.002))
    reading = read_log(first + slower, row=MEGATRON)
    assert (reading.flags, reading.step_time_s) == (("runs-differ", "several-runs"), 1.5)


def test_a_file_that_ends_within_a_number_gives_no_number_from_there() -> None:
    whole = "".join(titan(i, "8,192") for i in range(1, 9))
    cut = titan(9, "8,192").partition("8,192")[0] + "8,1"
    reading = read_log(whole + cut, row=TITAN)
    assert (reading.step_time_s, reading.flags) == (1.0, ("line-cut",))
    assert refusal(cut, TITAN) == "/log: the log has 1 lines, but none of them says how long a step took"


@pytest.mark.parametrize("end", range(1, 60))
def test_no_cut_makes_another_number(end: int) -> None:
    """Wherever a log is cut, what is read of it is a number that was printed."""
    text = "".join(titan(i, "8,192") for i in range(1, 4))[:-end]
    assert read_log(text, row=TITAN).step_time_s == 1.0


def test_decimal_commas_are_read_where_they_can_be_nothing_else() -> None:
    text = "".join(line(i, "1000,5") for i in range(1, 9))
    assert read_log(text, row=MEGATRON).step_time_s == 1.0005
    unclear = text + line(9, "1,234")
    assert read_log(unclear, row=MEGATRON).flags == ("unclear-numbers",)
    assert read_log(unclear, row=MEGATRON).step_time_s == 1.0005


def test_an_unclear_number_that_stands_last_is_left_out() -> None:
    """A block of composer's that ends the log with a rate that is no number: drawn cases found it raise past the readers."""
    row = {"training": {**MEGATRON["training"], "framework": "fsdp"}, "strategy": {"dp": 1}}
    blocks = "".join(f"[batch={i}/9]:\n\t Train throughput/batches_per_sec: 0.5000\n" for i in range(1, 5))
    reading = read_log(f"{blocks}[batch=5/9]:\n\t Train throughput/batches_per_sec: 1.2.3\n", row=row)
    assert (reading.step_time_s, reading.flags) == (2.0, ("unclear-numbers",))


def test_a_log_of_another_framework_is_refused_by_name() -> None:
    text = "".join(line(i, "1000.0") for i in range(1, 9))
    assert refusal(text, TITAN) == "/log: the log is of Megatron-LM, which the row's framework torchtitan does not run"
    assert refusal(text, TITAN, format="torchtitan") == refusal(text, TITAN)
    assert refusal(text, MEGATRON, format="nemo") == "/format: the log has no step of NeMo, but steps of Megatron-LM"
    assert refusal(text, MEGATRON, format="megatrn") == "/format: 'megatrn' is not a format of logs that is known here"
    assert read_log(text, row=MEGATRON, format="megatron").step_time_s == 1.0


def test_of_a_mixed_log_the_rows_framework_is_read() -> None:
    text = "".join(line(i, "1000.0") + titan(i, "16,384") for i in range(1, 9))
    assert (read_log(text, row=TITAN).step_time_s, read_log(text, row=TITAN).flags) == (0.5, ("mixed-formats",))
    assert read_log(text, row=MEGATRON).step_time_s == 1.0


def test_what_is_no_log_is_told_apart() -> None:
    assert refusal("", MEGATRON) == "/log: the log is empty"
    assert refusal("\n\r\n \n", MEGATRON) == "/log: the log is empty"
    assert refusal([bytes(range(256)) * 300], MEGATRON) == "/log: the log is not text"
    assert (
        refusal("hello\nworld\n", MEGATRON) == "/log: the log has 2 lines, but none of them says how long a step took"
    )
    assert refusal("[1, 2]", MEGATRON) == "/log: the log has 1 lines, but none of them says how long a step took"
    assert (
        refusal('{"step_time_s": -1}', MEGATRON)
        == "/log/step_time_s: step_time_s is -1; it must be a number from 1e-06 to 1e+07"
    )
    assert refusal('{"step_time_s": 1, "peak_memory_gib": "x"}', MEGATRON) == (
        "/log/peak_memory_gib: peak_memory_gib is 'x'; it must be a number from 1e-06 to 1e+07"
    )


def test_a_row_without_its_batch_is_refused() -> None:
    text = line(1, "1000.0")
    assert refusal(text, {"training": {"seq_length": 4096}, "strategy": {"dp": 1}}) == (
        "/row/training/global_batch_size: global_batch_size is missing"
    )
    assert "/row/strategy/tp: tp must be a whole number" in refusal(
        text, {**MEGATRON, "strategy": {"tp": "x", "dp": 1}}
    )
    tokens = {"training": {"seq_length": 4096, "global_batch_tokens": 65536}, "strategy": {"dp": 1}}
    assert read_log("".join(line(i, "1000.0") for i in range(9)), row=tokens).flags == ()


def huge(num_bytes: int) -> Iterator[bytes]:
    """A file of which nothing but every thousandth line is of interest."""
    noise = b"[2026-11-29 10:00:00] [INFO] loaded shard 000123 of the corpus, 123,456 documents, nothing to see here at all\n"
    step = size = 0
    while size < num_bytes:
        step += 1
        piece = noise * 999 + line(step, "1000.0").encode()
        yield from piece.splitlines(keepends=True)
        size += len(piece)


def test_a_large_file_is_read_piece_by_piece() -> None:
    tracemalloc.start()
    try:
        reading = read_log(huge(1_000_000), row=MEGATRON)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reading.step_time_s == 1.0
    assert peak < 1_000_000, peak


def test_a_line_behind_a_long_progress_bar_is_read() -> None:
    bar = "".join(f"\r{i:3}%|{'#' * 40}| {i}/100" for i in range(1000))
    assert read_log("".join(f"{bar}\r{line(i, '1000.0')}" for i in range(1, 5)), row=MEGATRON).step_time_s == 1.0


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece", ["iteration 1/1 |", "step: 1 memory: 1GiB ", "{'a'", "[Rank 1]", "time (ms) | a: 1", "1", "x", "\x1b["]
)
def test_no_made_up_line_takes_long(piece: str) -> None:
    """A million characters in one line that look like the beginnings of many: an expression that backtracks would need hours."""
    marks = "elapsed time per iteration (ms): tps:  max allocated: mem-max- 'train_runtime': \"seconds\": iter time (s): time (ms) |"
    refusal(piece * (1_000_000 // len(piece)) + marks, MEGATRON)
    refusal((piece * (8_000 // len(piece)) + marks + "\n") * 20, MEGATRON)


def test_a_file_without_ends_of_lines_is_not_held_whole() -> None:
    tracemalloc.start()
    try:
        refusal((b"x" * (1 << 16) for _ in range(40)), MEGATRON)  # 2.6 MB in one line
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000, peak


def test_a_state_of_the_trainer_is_read_by_its_history() -> None:
    history = [
        {"step": 10 * i, "loss": 7.1, "train_runtime": seconds}
        for i, seconds in enumerate([40.0, 65.0, 90.5, 116.1], start=1)
    ]
    row = {"training": {"seq_length": 4096, "global_batch_size": 16, "framework": "fsdp"}, "strategy": {"dp": 1}}

    reading = read_log(json.dumps({"global_step": 40, "log_history": history}, indent=2), row=row)
    # Intervals of 25, 25.5 and 25.6 s of ten steps, of which the first is left out.
    assert (reading.format, reading.step_time_s, reading.num_steps) == ("trainer-state", pytest.approx(2.555), 20)
    assert reading.resolution_fraction == pytest.approx(1e-5 / 2.555)
    whole = [{"step": 40, "train_runtime": 120.0, "train_steps_per_second": 0.333}]
    reading = read_log(json.dumps({"log_history": whole}), row=row)
    assert (reading.step_time_s, reading.kind, reading.flags) == (3.0, "cumulative", ("cumulative",))
    assert refusal(json.dumps({"log_history": [None, 3, {"step": "x"}]}), row) == (
        "/log: no entry of the trainer's state says how long it took (train_runtime)"
    )
