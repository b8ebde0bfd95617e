"""A profiling job as it is sent."""

from __future__ import annotations

import json
from typing import Any

from app.service.db.profiling_jobs import ProfilingJob
from app.service.timestamps import rfc3339


def job_document(job: ProfilingJob) -> dict[str, Any]:
    """The document of a profiling job, a `ProfilingJobDocument`."""
    wanted = job.wanted
    return {
        "id": job.id,
        "status": job.status,
        "created_at": rfc3339(job.created_at),
        "started_at": None if job.started_at is None else rfc3339(job.started_at),
        "finished_at": None if job.finished_at is None else rfc3339(job.finished_at),
        "request": {
            "agent": wanted.agent_id,
            "gpu": wanted.gpu,
            "gpus_per_node": wanted.gpus_per_node,
            "num_nodes": wanted.num_nodes,
            "budget_s": wanted.budget_s,
            "framework": wanted.framework,
            "name": wanted.name,
        },
        "agent": job.agent_id,
        "agents_in_touch": job.agents_in_touch,
        "attempts": job.attempts,
        "parts_done": job.parts_done,
        "calibration": job.calibration_id,
        "error": None if job.error is None else json.loads(job.error),
    }
