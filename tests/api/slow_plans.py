"""A planning task that takes as long as the test says: `seed` tenths of a second, or the end of its worker."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from app.service.db.plan_result import PlanResult, split_response
from app.service.jobs.worker import JobInput
from planner.search.progress import Progress

DEADLY_SEED = 666


def run(job: JobInput, *, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> PlanResult:
    request = json.loads(job.payload)["request"]
    seed = request.get("seed", 0)
    if seed == DEADLY_SEED:
        os.kill(os.getpid(), signal.SIGKILL)
    for tenth in range(seed):
        on_progress(Progress(tenth, best_s=2.0, bound_s=1.0))
        time.sleep(0.1)
        if should_stop():
            break
    empty: dict[str, Any] = {"plans": [], "search": None, "rejected": {}, "nearest_infeasible": [], "warnings": []}
    return split_response(
        {"id": job.id, "status": "succeeded", "created_at": job.created_at, "request": request, **empty}
    )
