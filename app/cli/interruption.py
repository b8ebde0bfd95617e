"""Ctrl-C, and a batch system's SIGTERM, while a command holds what it has measured."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def wound_up() -> Iterator[None]:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt; further ones change nothing until this ends.

    Somebody who presses Ctrl-C again and again would else interrupt the ending of processes, and the keeping of what was found.
    """
    is_ending = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal is_ending
        if not is_ending:
            is_ending = True
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
