"""What the service asks of whatever runs its jobs. The table of jobs is the queue: a restart therefore loses none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import Connection

from app.service.db.jobs import JobEvent, JobKey
from app.service.jobs.watchers import Watch


@dataclass(frozen=True, slots=True)
class Kind:
    """How jobs of one kind are run."""

    task: str
    """`module:function` that a worker process calls: (JobInput, on_progress, should_stop) -> result."""
    write_result: Callable[[Connection, JobKey, Any], None]
    """Stores the result inside the transaction that ends the job, so that no job succeeds without one."""


Kinds = Mapping[str, Kind]


class JobRunner(Protocol):
    """Runs queued jobs until it is stopped."""

    def start(self) -> None:
        """Begins to claim jobs. It returns before the workers have loaded."""

    def stop(self) -> None:
        """Stops claiming jobs and queues again those that were running."""

    def submit(self, key: JobKey) -> None:
        """Says that this job is queued, so that it starts without waiting for the next look at the table."""

    def cancel(self, key: JobKey) -> None:
        """Stops this job if it runs in this process. Its row says already that it is to be cancelled."""

    async def wait(self, key: JobKey, *, timeout_s: float) -> None:
        """Returns when the job has ended, or after `timeout_s`, or when everybody is dismissed."""

    def watch(self, key: JobKey) -> AbstractContextManager[Watch[JobEvent]]:
        """The events of this job as they happen."""

    def dismiss(self) -> None:
        """Lets everybody go who waits for a job or watches one, now and from now on."""

    def ready_workers(self) -> int:
        """Number of workers that are running a job or could start one at once."""
