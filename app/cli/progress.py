"""What a terminal shows while somebody waits: one line on stderr, from the second second on, which is gone at the end.

Nothing appears where stderr is no terminal, so that logs and pipes hold answers only. The line is plain text, which needs no
library to be loaded and no colour to be left out, and it is written by a thread of its own: a search reports when a part of it
is done, and people want to see the seconds pass in between.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from planner.search.progress import Progress

# Most searches end within a second, and a line that flashes up tells nobody anything.
_SHOW_AFTER_S = 1.0
_REWRITE_EVERY_S = 0.25
_NARROWEST = 20


class StatusLine:
    """A line that is rewritten four times a second while a `with` block runs."""

    def __init__(
        self,
        text: Callable[[float], str],
        *,
        quiet: bool,
        stream: TextIO | None = None,
        after_s: float = _SHOW_AFTER_S,
    ) -> None:
        """`text` says what the line holds after so many seconds; it is called by another thread."""
        self._stream = stream or sys.stderr
        self._after_s = after_s
        self._text = text
        self._is_shown = not quiet and self._stream.isatty()
        # Reentrant, because a signal may find the same thread inside, about to clear the line.
        self._lock = threading.RLock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._written = ""

    def __enter__(self) -> Self:
        if self._is_shown:
            self._began_s = time.monotonic()
            self._thread = threading.Thread(target=self._keep_writing, name="status line", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._done.set()
        # The thread may be about to write; cleared before it ends, the line could come back.
        if self._thread is not None:
            self._thread.join()
        self._clear()

    def say(self, message: str) -> None:
        """Prints a line that stays, above the one that is rewritten."""
        with self._lock:
            self._clear()
            self._stream.write(message + "\n")
            self._stream.flush()

    def _keep_writing(self) -> None:
        wait_s = self._after_s
        while not self._done.wait(wait_s):
            wait_s = _REWRITE_EVERY_S
            # A terminal that was closed is nobody's to tell; what is computed may still go into a file.
            with suppress(OSError, ValueError):
                self._write(self._text(time.monotonic() - self._began_s))

    def _write(self, text: str) -> None:
        with self._lock:
            if self._done.is_set():
                return
            # The last column stays free: a character there makes some terminals begin a new line.
            text = text[: max(_terminal_width(self._stream) - 1, _NARROWEST)]
            if text == self._written:
                return
            self._stream.write("\r" + text.ljust(len(self._written)))
            self._written = text
            self._stream.flush()

    def _clear(self) -> None:
        """Overwrites the line with blanks, which every terminal understands, and the `^C` that a terminal echoes behind it."""
        with self._lock, suppress(OSError, ValueError):
            if self._written:
                width = max(_terminal_width(self._stream) - 1, _NARROWEST)
                self._stream.write("\r" + " " * min(len(self._written) + len("^C"), width) + "\r")
                self._stream.flush()
            self._written = ""


class SearchLine(StatusLine):
    """The line of a search: the best step so far, what none can undercut, the gap between the two, and what was priced."""

    def __init__(
        self,
        *,
        quiet: bool,
        stream: TextIO | None = None,
        after_s: float = _SHOW_AFTER_S,
        extras: Sequence[str] = (),
    ) -> None:
        """`extras` are the analyses that the request includes: the line stands until they are done, too."""
        super().__init__(self._told, quiet=quiet, stream=stream, after_s=after_s)
        self._doing = " ".join(["Searching", *(f"with {', '.join(extras)}" for _ in extras[:1])])
        # One reference that is replaced as a whole: the thread that reads it needs no lock.
        self._last: Progress | None = None

    @property
    def on_progress(self) -> Callable[[Progress], None] | None:
        """What a search is given to report to; None where nobody looks, so that it need not report."""
        return self._keep if self._is_shown else None

    def _keep(self, progress: Progress) -> None:
        self._last = progress

    def _told(self, elapsed_s: float) -> str:
        return f"{self._doing} for {elapsed_s:.0f} s{searched(self._last)}"


def searched(progress: Progress | None) -> str:
    """What a search has found so far, as the continuation of a sentence; empty before its first report."""
    if progress is None:
        return ""
    from app.plan_cells import seconds

    best_s, bound_s = progress.best_s, progress.bound_s
    parts = [f"best {seconds(best_s)} s" if best_s is not None else "no plan yet"]
    if bound_s is not None:
        parts.append(f"bound {seconds(bound_s)} s")
    if best_s is not None and bound_s is not None:
        parts.append(f"gap {max(0.0, (best_s - bound_s) / best_s):.1%}")
    return f": {', '.join(parts)}, {progress.evaluated:,.0f} priced"


def _terminal_width(stream: TextIO) -> int:
    """Columns of the terminal behind a stream; 80 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or shutil.get_terminal_size().columns
    except (OSError, ValueError):
        return 80
