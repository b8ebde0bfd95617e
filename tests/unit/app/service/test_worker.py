"""A worker from its own side, how often it reports and how its end is told; and what one process is told of another."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from ctypes import c_bool
from pathlib import Path
from typing import Any

import pytest

from app.service.jobs.worker import Failed, JobInput, Reporter, serve
from app.service.jobs.worker_process import Limits, WorkerProcess
from planner.search.progress import Progress

JOB = JobInput("id", "leave", "{}", "2026-01-01T00:00:00.000000Z")


class Pipe:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def test_progress_is_reported_five_times_a_second_and_the_first_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, pipe = [100.0], Pipe()
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    reporter = Reporter(pipe)  # type: ignore[arg-type]
    for moment_s in (100.0, 100.1, 100.19, 100.21, 100.4, 100.42):
        now_s[0] = moment_s
        reporter(Progress(moment_s))
    assert [each.evaluated for each in pipe.sent] == [100.0, 100.21, 100.42]


@pytest.mark.parametrize(("code", "told"), [(0, "exit code 0"), (7, "exit code 7")])
def test_a_worker_that_leaves_is_told_of_with_its_exit_code(
    code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving.py").write_text(f"import os\n\n\ndef run(job, **_):\n    os._exit({code})\n")
    monkeypatch.syspath_prepend(tmp_path)
    worker = WorkerProcess({"leave": "leaving:run"})
    assert worker.became_ready(is_abandoned=lambda: False)
    outcome = worker.run(JOB, limits=Limits(30.0, 0.2), on_progress=lambda _progress: None, is_abandoned=lambda: False)
    assert isinstance(outcome, Failed)
    assert told in json.dumps(outcome.error)
    assert not worker.is_alive
    worker.terminate()


def test_a_worker_whose_service_was_killed_leaves_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    """What the worker had sent was never read, so that the operating system reports a broken connection and no end of the pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, c_bool(), {}, list(sys.path)))
    process.start()
    theirs.close()
    assert ours.poll(30.0), "the worker says that it is ready"
    ours.close()
    process.join(30.0)
    assert process.exitcode == 0
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_nobody_waits_for_any_longer_is_not_ready() -> None:
    worker = WorkerProcess({})
    assert not worker.became_ready(is_abandoned=lambda: True)
    worker.terminate()
    assert not worker.is_alive
