"""The inside of a worker process: it receives jobs over a pipe, calls the task, and sends progress and the result back.

It loads neither the server nor the storage. A worker whose parent is gone stops when it next looks at its stop flag.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from ctypes import c_bool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from app.errors import InternalError, problem_document
from cost_models.errors import MeshwrightError
from planner.search.progress import Progress

# A search reports after every chunk. Each report that is sent becomes a row, and nobody watches more closely than this.
_PROGRESS_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class JobInput:
    """What a task is given."""

    id: str
    kind: str
    payload: str
    """The request as JSON."""
    created_at: str
    """RFC 3339, UTC."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has loaded its tasks."""


@dataclass(frozen=True, slots=True)
class Done:
    """What the task returned."""

    result: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """Why the task failed: a problem document for the user, and for the log the traceback if the program is at fault."""

    error: dict[str, Any]
    traceback: str | None = None


Message = Ready | Progress | Done | Failed
Task = Callable[..., Any]


class Reporter:
    """Sends progress to the service, at most five times a second."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._next_at = 0.0

    def __call__(self, progress: Progress) -> None:
        """Reports this, unless the last report has only just been sent."""
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _PROGRESS_EVERY_S
            self._connection.send(progress)


def serve(connection: Connection, stop: c_bool, tasks: Mapping[str, str], path: list[str]) -> None:
    """Runs jobs until the pipe closes.

    `path` is the service's own import path. A spawned interpreter would look into the current folder first, where users may
    well have an `app` or a `planner` of their own.
    """
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the service's to handle
    # Loaded before the worker reports itself ready, so that no job pays for the imports.
    functions = {kind: _load(task) for kind, task in tasks.items()}
    # An orphan is given a new parent. The service is then gone, and somebody else will run the job when its lease lapses.
    parent = os.getppid()

    def should_stop() -> bool:
        return bool(stop.value) or os.getppid() != parent

    connection.send(Ready())
    while True:
        try:
            job: JobInput = connection.recv()
        except (EOFError, ConnectionError):  # the second where the service was killed before it had read everything
            return
        message = _run(functions[job.kind], job, on_progress=Reporter(connection), should_stop=should_stop)
        try:
            connection.send(message)
        except BrokenPipeError:
            return


def _load(task: str) -> Task:
    module, _, name = task.partition(":")
    function: Task = getattr(importlib.import_module(module), name)
    return function


def _run(task: Task, job: JobInput, *, on_progress: Reporter, should_stop: Callable[[], bool]) -> Done | Failed:
    try:
        return Done(task(job, on_progress=on_progress, should_stop=should_stop))
    except MeshwrightError as error:
        return Failed(problem_document(error))
    except Exception:  # noqa: BLE001 - the outermost edge of a worker
        defect = InternalError(
            "the job failed because of a bug in the program", hint="Please report it with the server's log."
        )
        return Failed(problem_document(defect), traceback.format_exc())
