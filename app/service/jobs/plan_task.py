"""The planning job as a worker process runs it."""

from __future__ import annotations

import json
from collections.abc import Callable

from app.service.db.plan_result import PlanResult, split_response
from app.service.jobs.worker import JobInput
from cost_models.hardware import document_of
from planner.plan import plan
from planner.search.progress import Progress


def run(job: JobInput, *, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> PlanResult:
    """The answer to a stored plan request."""
    # The service checked this document when it was posted, yet it is parsed and checked again here. A queue that outlives a
    # restart can only keep text, and the job may have been queued by an earlier release whose rules were looser. What that
    # costs is a few milliseconds beside a search; in exchange a worker never plans what the program would refuse today.
    payload = json.loads(job.payload)
    calibrations = {name: document_of(content) for name, content in payload["calibrations"].items()}
    response = plan(payload["request"], calibrations=calibrations, on_progress=on_progress, should_stop=should_stop)
    return split_response({**response, "id": job.id, "status": "succeeded", "created_at": job.created_at})
