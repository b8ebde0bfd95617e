"""The inside of an answering process: it is asked one question at a time, sends the answer in parts, and ends with its service.

It loads neither the server nor the storage. What it has to know of the database it asks the service for, which looks up for the
tenant whose question is being answered and for nobody else.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import traceback
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from app.errors import InternalError, MemoryLimitError, problem_document
from app.service.answering.messages import Asked, Ended, Last, Part, Question, Ready, Refused, receive, send
from cost_models.errors import MeshwrightError

# The service ends a process that takes too long. This much later the process ends by itself, should nobody be left to do so.
_ORPHAN_AFTER_S = 5.0


class AskedCalibrations:
    """The tenant's calibrations, which the service looks up when it is asked."""

    def __init__(self, connection: socket.socket, incoming: BinaryIO) -> None:
        self._connection = connection
        self._incoming = incoming

    def newest(self, _tenant: str, *, gpu: str, gpus_per_node: int) -> str | None:
        """Id of the newest calibration of this GPU and node shape."""
        return self._asked(Asked("newest", options={"gpu": gpu, "gpus_per_node": gpus_per_node}))  # type: ignore[no-any-return]

    def documents(self, _tenant: str, ids: Sequence[str]) -> dict[str, str]:
        """Those of these documents that the tenant has, as JSON by id."""
        return self._asked(Asked("documents", (list(ids),)))  # type: ignore[no-any-return]

    def _asked(self, question: Asked) -> Any:
        send(self._connection, question)
        return receive(self._incoming)


def serve(connection: socket.socket, *, memory_bytes: int) -> None:
    """Answers questions until the service closes the connection; `memory_bytes` bounds the data of this process."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with connection, connection.makefile("rb") as incoming:
        calibrations = AskedCalibrations(connection, incoming)
        try:
            send(connection, Ready(os.getpid()))
            while True:
                question: Question = receive(incoming)
                signal.setitimer(signal.ITIMER_REAL, question.time_limit_s + _ORPHAN_AFTER_S)
                for message in answer(question, calibrations):
                    send(connection, message)
                signal.setitimer(signal.ITIMER_REAL, 0.0)
        except (EOFError, OSError):
            return


def answer(question: Question, calibrations: AskedCalibrations) -> Iterator[Part | Last | Ended | Refused]:
    """The parts of the answer, and how it ended."""
    try:
        for part in question.function(calibrations, *question.args):
            if isinstance(part, Last):
                yield part
                return
            yield Part(part)
    except MeshwrightError as error:
        yield Refused(problem_document(error))
    except MemoryError:
        message = "the answer needs more memory than one answer may take"
        yield Refused(problem_document(MemoryLimitError(message, hint="Send fewer or smaller rows at a time.")))
    except Exception:  # noqa: BLE001 - the outermost edge of the process
        defect = InternalError(
            "the service has failed because of a bug", hint="Please report it with the server's log."
        )
        yield Refused(problem_document(defect), traceback.format_exc())
    else:
        yield Ended()
