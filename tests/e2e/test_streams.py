"""The program between pipes: answers while rows are still coming, readers that leave early, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ROW = (ROOT / "examples" / "requests" / "evaluate.jsonl").read_text().splitlines()[0]
WAIT_S = 30


@pytest.fixture
def evaluating() -> Iterator[subprocess.Popen[str]]:
    """`meshwright evaluate -` with all three streams open."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "meshwright", "evaluate", "-"]
    with subprocess.Popen(command, cwd=ROOT, text=True, preexec_fn=hear_interrupts, **pipes) as process:  # noqa: PLW1509
        watchdog = Timer(WAIT_S, process.kill)
        watchdog.start()
        yield process
        watchdog.cancel()
        process.kill()


def hear_interrupts() -> None:
    """A shell starts background jobs, such as a whole test run, deaf to Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def answer(process: subprocess.Popen[str], row: str) -> dict[str, object]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(row + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def test_a_row_is_answered_before_the_next_is_written(evaluating: subprocess.Popen[str]) -> None:
    assert [answer(evaluating, row)["verdict"] for row in (ROW, "{", "[]")] == ["fits", "invalid", "invalid"]


def test_interrupt_ends_with_130_and_without_a_traceback(evaluating: subprocess.Popen[str]) -> None:
    answer(evaluating, ROW)
    evaluating.send_signal(signal.SIGINT)
    assert evaluating.wait(timeout=WAIT_S) == 130
    assert evaluating.stderr is not None
    assert evaluating.stderr.read() == ""


def test_a_reader_that_leaves_early_is_no_failure() -> None:
    """`yes ROW | head -n 500 | meshwright evaluate - | head -n 1`: the pipe closes while answers are still written."""
    script = 'for i in $(seq 500); do printf "%s\\n" "$0"; done | "$1" -m meshwright evaluate - | head -n 1; echo "${PIPESTATUS[1]}"'
    done = subprocess.run(
        ["bash", "-c", script, ROW, sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    first, code = done.stdout.splitlines()
    assert json.loads(first)["verdict"] == "fits"
    assert (code, done.stderr) == ("0", "")


@pytest.mark.parametrize("command", [["plan", "examples/requests/qwen3-8b-fsdp.json"], ["plan", "--help"]])
def test_a_reader_of_a_table_or_of_help_may_leave_at_once(command: list[str]) -> None:
    script = '"$0" -m meshwright "$@" | true; echo "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable, *command],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=WAIT_S,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("redirected", [">&-", "--json >&-", "2>&-", "<&-"])
def test_closed_streams_are_no_failure(redirected: str) -> None:
    script = f'"$0" -m meshwright plan examples/requests/qwen3-8b-fsdp.json {redirected}'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable], cwd=ROOT, capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
