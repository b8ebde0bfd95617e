"""Who runs a trial: a name for a process that tells on its own machine whether the process is still there."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def this_process() -> str:
    """What names this process among all that work on a study: its machine, its number, and when it was started."""
    return _named(os.getpid())


def has_died(owner: str) -> bool:
    """Whether the process that `this_process` named is gone. Of a process of another machine it cannot be told, so it counts as alive."""
    host, _, rest = owner.partition("|")
    number, _, _ = rest.partition("|")
    if host != platform.node() or not number.isdigit():
        return False
    # A trial of this very process was cut off, too: whoever asks is not in the middle of it.
    return int(number) == os.getpid() or not _exists(int(number)) or _named(int(number)) != owner


def _named(number: int) -> str:
    return f"{platform.node()}|{number}|{_started(number)}"


def _started(number: int) -> str:
    """When a process was started, in ticks since the machine was; empty where the system does not tell."""
    # Numbers of processes are used again, also after a restart of the machine, so that a number alone proves nothing.
    try:
        content = Path(f"/proc/{number}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    # The name of the program stands in parentheses and may hold anything; 20 fields later is the time (proc(5)).
    return content.rpartition(")")[2].split()[19]


def _exists(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
