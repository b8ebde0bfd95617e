"""What the service asks of whatever runs its jobs. Job rows are the queue; a runner claims them, so a restart loses none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection

from app.service.db.jobs import JobKey


@dataclass(frozen=True, slots=True)
class Kind:
    """How jobs of one kind are done."""

    task: str
    """`module:function` that a worker process calls: (JobInput, on_progress, should_stop) -> result."""
    write_result: Callable[[Connection, JobKey, Any], None]
    """Stores the result, inside the transaction that ends the job."""


Kinds = Mapping[str, Kind]


class JobRunner(Protocol):
    """Runs queued jobs until it is stopped."""

    def start(self) -> None:
        """Begins to claim jobs; returns before the workers are warm."""

    def stop(self) -> None:
        """Stops claiming; what was running is queued again."""

    def submit(self, key: JobKey) -> None:
        """Says that this job is queued: it is started without waiting for the next look at the table."""

    def cancel(self, key: JobKey) -> None:
        """Stops this job where it runs here; its row already says that it shall be cancelled."""

    async def wait(self, key: JobKey, *, timeout_s: float) -> None:
        """Returns when the job has ended, or after `timeout_s`."""

    def ready_workers(self) -> int:
        """Workers that could start a job at once, or are at one."""
