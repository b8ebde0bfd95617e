"""Stands between a trial's launcher and launch files: python -m profiler.trial.guard COMMAND …

When the launcher is killed, nothing else would end what the launch files have started: torchrun's workers are in sessions of their own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from profiler.trial.processes import MARK, die_with_parent, end_marked


def main() -> int:
    """Runs the command, and ends all that came of it when it has ended or the launcher is gone."""
    # Before the kernel is asked for the signal, which may come at once.
    signal.signal(signal.SIGTERM, _end)
    die_with_parent(signal.SIGTERM)
    try:
        code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)  # noqa: S603 - launch files that the caller names
    finally:
        end_marked(os.environ[MARK], but=os.getpid())
    return code if code >= 0 else 128 - code


def _end(_signal: int, _frame: Any) -> None:
    end_marked(os.environ[MARK], but=os.getpid())
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
