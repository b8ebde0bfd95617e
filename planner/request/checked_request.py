"""A plan request that has been checked: the job it describes, the request with everything filled in, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from cost_models.errors import InvalidInputError
from cost_models.job import Job, PooledJob
from cost_models.specs.fields import validated
from cost_models.specs.pools_input import lists_pools
from planner.pools.jobs import resolve_pooled_job
from planner.request.checks import check_request
from planner.request.job import Documents, missing_or_wrong, resolve_job
from planner.request.resolved import resolved_request
from planner.revision import model_revision
from planner.schemas.plan_request import PlanRequest

PRODUCT_VERSION = version("meshwright")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A checked request, ready to be planned."""

    asked: PlanRequest
    job: Job | PooledJob
    resolved: dict[str, Any]
    """The request with presets spelled out and defaults filled in."""
    digest: str


def prepare(
    request: Mapping[str, Any], *, calibrations: Documents | None = None, allow_files: bool = False
) -> Prepared:
    """The request, checked and resolved. For the arguments see `planner.plan.plan`.

    Raises:
        InvalidInputError: something in the request is wrong; the error lists every problem.
        CalibrationError: a calibration cannot be used.
    """
    _refuse_names(request)
    asked = validated(PlanRequest, request, pointer="")
    resolve = resolve_pooled_job if lists_pools(request.get("cluster")) else resolve_job
    job: Job | PooledJob = resolve(request, extra=calibrations, allow_files=allow_files, states_version=True)
    check_request(asked, job)
    resolved = resolved_request(asked, job)
    jobs = job.jobs if isinstance(job, PooledJob) else (job,)
    digest = request_digest(
        resolved, calibration_id=" ".join(each.calibration.id for each in jobs), revision=model_revision()
    )
    return Prepared(asked, job, resolved, digest)


def _refuse_names(document: object) -> None:
    """Refuses a specification that was given as a name or a number, and shows how to write it as an object."""
    if not isinstance(document, Mapping):
        return  # the schema's own error says what is wrong
    given = [name for name in ("model", "cluster", "training") if name in document]
    wrong = [missing_or_wrong(document, name) for name in given if not isinstance(document[name], Mapping)]
    if wrong:
        raise InvalidInputError([problem for error in wrong for problem in error.problems])


def request_digest(resolved: Mapping[str, Any], *, calibration_id: str, revision: str) -> str:
    """SHA-256 of everything that determines the ranking: request, product version, model revision and calibration."""
    # How long a client is willing to wait changes nothing in the answer, so `wait_s` must not make a second job of a request.
    content = {name: value for name, value in resolved.items() if name != "wait_s"}
    text = json.dumps([content, PRODUCT_VERSION, revision, calibration_id], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
