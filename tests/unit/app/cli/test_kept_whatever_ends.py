"""What a command has measured is kept whatever ends it: signals in a row, and files that cannot be written."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from app.cli.interruption import wound_up
from app.cli.output import write_file


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_interrupts_and_further_ones_wait_for_the_end(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    steps = []
    with wound_up():
        try:
            os.kill(os.getpid(), number)
            steps.append("not interrupted")
        except KeyboardInterrupt:
            # Somebody presses Ctrl-C again while what was measured is put together.
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("kept")
    assert steps == ["kept"]
    assert signal.getsignal(number) == before


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    write_file(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_file(path, "\ud800")
    assert path.read_text() == "old"
    write_file(path, "new")
    assert [each.name for each in tmp_path.iterdir()] == ["tuning.json"]
    assert path.read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_file(Path("/dev/full"), "x" * 100_000)
    assert Path("/dev/full").is_char_device()
