"""Why a trial failed, in one line: the first error among all that its processes wrote.

One rank's error brings others about: peers lose their connections, launchers report children. Those are told only where nothing better is.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from profiler.trial.record import one_line

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^\s*(?:\[(?:rank|default)?\d+\]:? ?|\d+: )+")
"""What torchrun, torch and srun write before a rank's line."""
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure|NotFound|Exit)\b(?::|$)")
_BY_NAME = re.compile(
    r"^(?:python\S*: |\S+/python\S*: )?(?:Error|ERROR|FATAL|Fatal Python error|error): |No module named|command not found|No such file or directory|"
    r"^terminate called after throwing|^\S+: error: |^The plan is for \d+ ranks"
)
"""Errors that come without a traceback: of shells, parsers, and of C++."""
_CONSEQUENCE = re.compile(
    r"ChildFailedError|SignalException|ProcessExitedException|Connection (?:reset|closed|refused)|connection closed by peer|Broken pipe|"
    r"remote process exited|Watchdog caught collective|failed \(exitcode|Failed to (?:recv|send)|ncclRemoteError|heartbeat|TCPStore|CalledProcessError|"
    r"elastic/multiprocessing|KeyboardInterrupt",
    re.IGNORECASE,
)
_OUT_OF_DEVICE_MEMORY = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP)(?: error:)? out of memory|Cuda failure 2|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|"
    r"CUDNN_STATUS_ALLOC_FAILED|Failed to CUDA (?:m|c)alloc|'out of memory'",
    re.IGNORECASE,
)
_MOST_CANDIDATES = 200


class Errors:
    """The errors among the lines that one trial's processes write, gathered while they come."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._after_colon = False

    def hear(self, lines: Iterable[str]) -> None:
        """Looks at the next lines of one process."""
        for written in lines:
            line = _PREFIX.sub("", _ANSI.sub("", written)).rstrip()
            # Some messages begin on the line after the exception's name.
            if self._after_colon and line.strip():
                self._found[-1] += f" {line.strip()}"
                self._after_colon = False
            elif len(self._found) < _MOST_CANDIDATES and (_EXCEPTION.match(line) or _BY_NAME.search(line)):
                self._found.append(line)
                self._after_colon = line.endswith(":")

    @property
    def out_of_memory(self) -> str | None:
        """The first line that says that a device's memory did not suffice."""
        return next((one_line(line) for line in self._found if _OUT_OF_DEVICE_MEMORY.search(line)), None)

    @property
    def first(self) -> str | None:
        """The first error that none of the others brought about; the first of any kind if there is no such one."""
        causes = [line for line in self._found if not _CONSEQUENCE.search(line)]
        return next((one_line(line) for line in [*causes, *self._found]), None)


def of_codes(codes: Sequence[int | None]) -> str | None:
    """What the exit codes say where nothing was written; None if all are zero."""
    failed = [code for code in codes if code]
    if not failed:
        return None
    # A positive code is a process's own; signals mostly come from whoever ended its peers.
    code = next((code for code in failed if code > 0), failed[0])
    if code > 0:
        return f"it ended with code {code} and said nothing"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    why = ", as the kernel does where host memory runs out" if -code == signal.SIGKILL else ""
    return f"a process was ended by {name}{why}"
