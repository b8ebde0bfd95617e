"""What jobs of the runner tests do in their worker process. The payload is JSON: `do`, and `seconds` where it takes time."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

from app.service.db.plan_result import PlanResult
from app.service.jobs.worker import JobInput
from cost_models.errors import SearchBudgetError
from planner.search.progress import Progress

STEP_S = 0.02


def act(job: JobInput, *, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> PlanResult:
    payload = json.loads(job.payload)
    what = payload["do"]
    if what == "refuse":
        raise SearchBudgetError("too much", hint="ask for less")
    if what == "break":
        raise ZeroDivisionError
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    end_at = time.monotonic() + payload.get("seconds", 0.0)
    while time.monotonic() < end_at:
        on_progress(Progress(end_at - time.monotonic(), best_s=2.0, bound_s=1.0))
        time.sleep(STEP_S)
        if what == "work" and should_stop():
            break
    told = json.dumps({"pid": os.getpid(), "did": what})
    return PlanResult.of_texts(response=told, headline="{}", ranked=['{"rank":1}'])
