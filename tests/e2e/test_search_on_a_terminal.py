"""A long search on a terminal: a line that tells how it goes, gone at the end; Ctrl-C keeps what was found; pipes stay clean."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

ARGUMENTS = (
    *("plan", "--model", "deepseek-v3", "--cluster", "dgx-h100", "--num-nodes", "256", "--seq-length", "4k"),
    *("--global-batch-tokens", "60M", "--framework", "megatron", "--precision", "bf16", "--top", "2"),
)
"""A search of seconds: 5.8 billion strategies."""


@dataclass
class Run:
    """A running program, and what has arrived of its stderr, which is a terminal."""

    process: subprocess.Popen[str]
    terminal: int
    seen: str = ""
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def listen(self) -> None:
        # A terminal whose other end is closed fails to be read instead of ending.
        while chunk := self._chunk():
            with self.arrived:
                self.seen += chunk
                self.arrived.notify_all()

    def _chunk(self) -> str:
        try:
            return os.read(self.terminal, 65_536).decode()
        except OSError:
            return ""

    def wait_for(self, words: str) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: words in self.seen, timeout=120.0), self.seen


@contextmanager
def running(*arguments: str, before: tuple[str, ...] = ()) -> Iterator[Run]:
    """The program with its stdout in a pipe and its stderr on a terminal; `before` are options of the program itself."""
    end, program = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", *before, *ARGUMENTS, *arguments],
        stdout=subprocess.PIPE,
        stderr=program,
        text=True,
    )
    os.close(program)
    run = Run(process, end)
    listener = threading.Thread(target=run.listen)
    listener.start()
    try:
        yield run
    finally:
        process.kill()
        process.wait()
        listener.join()
        os.close(end)
        assert process.stdout is not None
        process.stdout.close()


def test_an_interrupt_leaves_a_clean_terminal_and_the_plans_so_far() -> None:
    with running("--json") as run:
        run.wait_for("best ")
        run.process.send_signal(signal.SIGINT)
        answer, _ = run.process.communicate()
        assert run.process.returncode == 130
        response = json.loads(answer)
        assert (response["status"], len(response["plans"])) == ("cancelled", 2)
        assert run.seen.startswith("\rSearching for ")
        assert ", bound " in run.seen
        assert "\rStopping with the best plans so far. Press Ctrl-C again to leave at once.\r\n" in run.seen


def test_nothing_of_the_line_stays() -> None:
    with running("--json", "--time-limit", "4s") as run:
        run.wait_for("Searching for ")
        run.process.communicate()
        # The listener ends with the program, whose end of the terminal is the only one.
        run.wait_for(" \r")
        last = run.seen.rsplit("\r", 2)
        assert (last[1].strip(), last[2]) == ("", "")
        assert len(last[1]) >= len("Searching for 1 s")


def test_a_second_interrupt_ends_the_program_at_once() -> None:
    with running() as run:
        run.wait_for("Searching for ")
        run.process.send_signal(signal.SIGINT)
        run.wait_for("Press Ctrl-C again")
        run.process.send_signal(signal.SIGINT)
        answer, _ = run.process.communicate()
        assert (run.process.returncode, answer) == (130, "")
        assert "Traceback" not in run.seen


def test_neither_a_pipe_nor_quiet_gets_a_line() -> None:
    """Exit code 3 is that of a search that was stopped before it found a plan, as may happen where a machine is busy."""
    limited = [*ARGUMENTS, "--time-limit", "2s", "--json"]
    piped = subprocess.run([sys.executable, "-m", "meshwright", *limited], capture_output=True, text=True, check=False)
    assert (piped.stderr, piped.returncode in {0, 3}) == ("", True)
    assert json.loads(piped.stdout)["search"]["elapsed_s"] > 1.0
    with running("--json", "--time-limit", "2s", before=("--quiet",)) as run:
        answer, _ = run.process.communicate()
        assert json.loads(answer)["search"]["elapsed_s"] > 1.0
    assert run.seen == ""
