"""The line that a terminal shows during a search: what it says, where it does not appear, and that nothing of it stays."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

from app.cli.progress import SearchLine, StatusLine, searched
from planner.search.progress import Progress


class Terminal:
    """A terminal of 80 columns: the end that a program writes to, and what has arrived at the other one."""

    def __init__(self) -> None:
        self._end, program = pty.openpty()
        fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.set_blocking(self._end, False)
        self.stream: TextIO = os.fdopen(program, "w", encoding="utf-8")
        self.seen = ""

    def read(self) -> str:
        while True:
            try:
                self.seen += os.read(self._end, 65_536).decode()
            except BlockingIOError:
                return self.seen

    def wait_for(self, holds: Callable[[str], bool]) -> str:
        """What has arrived as soon as it holds; what has arrived after a minute otherwise."""
        end_at = time.monotonic() + 60.0
        while not holds(self.read()) and time.monotonic() < end_at:
            time.sleep(0.005)
        return self.seen

    def screen(self) -> list[str]:
        """The lines as they stand after every return to a line's beginning was obeyed."""
        lines = []
        for line in self.read().split("\r\n"):
            cells: list[str] = []
            for text in line.split("\r"):
                cells[: len(text)] = text
            lines.append("".join(cells).rstrip())
        return lines

    def close(self) -> None:
        self.stream.close()
        os.close(self._end)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    found = Terminal()
    yield found
    found.close()


def test_a_search_tells_best_bound_gap_and_count(terminal: Terminal) -> None:
    """The gap is what the best could lose: (30 - 24) / 30 = 20 %."""
    with SearchLine(quiet=False, stream=terminal.stream, after_s=0.0) as line:
        assert "Searching for 0 s" in terminal.wait_for(lambda seen: "for" in seen)
        assert line.on_progress is not None
        line.on_progress(Progress(evaluated=1234.0, best_s=30.0, bound_s=24.0))
        terminal.wait_for(lambda seen: "priced" in seen)
        assert terminal.screen()[-1].endswith(" s: best 30.0 s, bound 24.0 s, gap 20.0%, 1,234 priced")
    assert terminal.screen() == [""]


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (None, ""),
        (Progress(5.0), ": no plan yet, 5 priced"),
        (Progress(0.0, None, 2.0), ": no plan yet, bound 2.00 s, 0 priced"),
        (Progress(7.0, 4.0, None), ": best 4.00 s, 7 priced"),
        (Progress(7.0, 4.0, 4.000001), ": best 4.00 s, bound 4.00 s, gap 0.0%, 7 priced"),
    ],
)
def test_what_is_not_known_yet_is_left_out(progress: Progress | None, words: str) -> None:
    assert searched(progress) == words


def test_a_line_is_cut_where_the_terminal_ends_and_a_shorter_one_leaves_nothing_of_it(terminal: Terminal) -> None:
    """79 characters: one in the last of 80 columns would make some terminals begin a new line."""
    texts = iter(["x" * 100])
    with StatusLine(lambda _: next(texts, "short"), quiet=False, stream=terminal.stream, after_s=0.0):
        terminal.wait_for(lambda seen: "short" in seen)
        assert "\r" + "x" * 79 + "\r" in terminal.seen
        assert terminal.screen() == ["short"]
    assert terminal.screen() == [""]


def test_a_message_stays_above_the_line_even_behind_an_echoed_key(terminal: Terminal) -> None:
    with StatusLine(lambda _: "working", quiet=False, stream=terminal.stream, after_s=0.0) as line:
        terminal.wait_for(lambda seen: "working" in seen)
        terminal.stream.write("^C")
        line.say("Stopping.")
        terminal.wait_for(lambda seen: seen.endswith("working"))
        assert terminal.screen() == ["Stopping.", "working"]
    assert terminal.screen() == ["Stopping.", ""]


def test_an_error_clears_the_line_as_well(terminal: Terminal) -> None:
    def interrupted() -> None:
        with StatusLine(lambda _: "working", quiet=False, stream=terminal.stream, after_s=0.0):
            terminal.wait_for(lambda seen: "working" in seen)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "working" in terminal.read()
    assert terminal.screen() == [""]


def test_nothing_appears_before_its_time(terminal: Terminal) -> None:
    with SearchLine(quiet=False, stream=terminal.stream, after_s=60.0) as line:
        assert line.on_progress is not None
        line.on_progress(Progress(1.0))
        time.sleep(0.02)
    assert terminal.read() == ""


def test_quiet_and_pipes_get_nothing_and_ask_for_nothing(terminal: Terminal) -> None:
    pipe = io.StringIO()
    for line in (
        SearchLine(quiet=True, stream=terminal.stream, after_s=0.0),
        SearchLine(quiet=False, stream=pipe, after_s=0.0),
    ):
        with line:
            assert line.on_progress is None
            time.sleep(0.02)
    assert (terminal.read(), pipe.getvalue()) == ("", "")


def test_what_takes_longer_than_a_search_is_named(terminal: Terminal) -> None:
    with SearchLine(quiet=False, stream=terminal.stream, after_s=0.0, extras=("pareto", "what_if")):
        seen = terminal.wait_for(lambda seen: " s" in seen)
    assert "Searching with pareto, what_if for 0 s" in seen
