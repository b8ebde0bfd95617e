"""What answering processes compute in tests: answers that take long, need much, or end their process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.errors import WrongStateError
from app.service.answering.messages import Last
from app.service.intake.own_calibrations import CalibrationSource


def counted(_calibrations: CalibrationSource, number: int, seconds: float = 0.0) -> Iterator[int]:
    """The first numbers, with a pause before each."""
    for each in range(number):
        time.sleep(seconds)
        yield each


def ended_by_its_last(_calibrations: CalibrationSource) -> Iterator[int | Last]:
    """Two parts, of which the second says that none follows."""
    yield 1
    yield Last(2)
    yield 3


def process_id(_calibrations: CalibrationSource) -> Iterator[int]:
    """Where it is computed."""
    yield os.getpid()


def whatever_is_read(_calibrations: CalibrationSource, told: Path) -> Iterator[bytes]:
    """A MiB after the other without an end; `told` holds a byte for each that was computed."""
    while True:
        with told.open("ab") as file:
            file.write(b".")
        yield bytes(1 << 20)


def greedy(_calibrations: CalibrationSource, mib: int) -> Iterator[int]:
    """The size of a block of so much memory."""
    yield len(bytearray(mib << 20))


def deadly(_calibrations: CalibrationSource) -> Iterator[int]:
    """A part, and then the end of the process, as the system's killer for want of memory brings it."""
    yield 1
    os.kill(os.getpid(), signal.SIGKILL)


def refused(_calibrations: CalibrationSource) -> Iterator[int]:
    """A part, and then an error that a user may meet."""
    yield 1
    raise WrongStateError("it is closed", hint="Open it.")


def faulty(_calibrations: CalibrationSource) -> Iterator[Any]:
    """A defect of the program."""
    yield from {}["nothing"]


def documents(calibrations: CalibrationSource, names: list[str]) -> Iterator[dict[str, str]]:
    """Those of these calibrations that can be had."""
    yield calibrations.documents("somebody", names)
