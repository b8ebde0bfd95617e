"""A plan request that has been checked: the job it describes, the request with everything filled in, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from cost_models.errors import InvalidInputError, Problem
from cost_models.inputs.fields import validated
from cost_models.job import PooledJob
from planner.request.checks import refuse_contradictions
from planner.request.job import Documents, missing_or_wrong, resolve_pooled_job
from planner.request.late_updates import with_late_updates, without_late_updates
from planner.request.methods import job_of_request
from planner.request.resolved import resolved_request
from planner.revision import model_revision
from planner.schemas.plan_request import PlanRequest

PRODUCT_VERSION = version("meshwright")


@dataclass(frozen=True, eq=False)
class CheckedRequest:
    """A request that can be planned: parsed, resolved and free of contradictions. Nothing after it parses again."""

    given: Mapping[str, Any]
    """The request as it was asked."""
    asked: PlanRequest
    """Its constraints, objective and limits, without what changes a step's updates (`late`)."""
    job: PooledJob
    resolved: dict[str, Any]
    """The request with presets spelled out and defaults filled in."""
    digest: str
    """SHA-256 of all that the ranking follows from."""
    calibrations: Documents
    """The caller's documents that `cluster.calibration` may name, beside the shipped ones."""
    allow_files: bool
    """Whether `cluster.calibration` may be a path."""
    late: PlanRequest | None = None
    """What it asks of plans that apply some updates late (ZenFlow), where it lists or fixes that."""

    def changed(self, document: Mapping[str, Any]) -> CheckedRequest:
        """Another request of the same caller, checked; it raises what `check_request` does."""
        return check_request(document, calibrations=self.calibrations, allow_files=self.allow_files)


def parse_request(document: Any) -> PlanRequest:
    """The request as the contract's schema reads it: types, ranges and names of fields, nothing that needs the job.

    Raises:
        InvalidInputError: with every field that the schema refuses.
    """
    try:
        return validated(PlanRequest, document, pointer="")
    except InvalidInputError as error:
        raise InvalidInputError([_with_example(document, problem) for problem in error.problems]) from error


def check_request(
    request: Mapping[str, Any],
    *,
    asked: PlanRequest | None = None,
    calibrations: Documents | None = None,
    allow_files: bool = False,
) -> CheckedRequest:
    """The request, checked and resolved.

    Args:
        request: a plan request in the contract's names.
        asked: the same request where the caller has parsed it already; only names of calibrations may have changed since.
        calibrations: documents that `cluster.calibration` may name, beside the shipped ones.
        allow_files: whether `cluster.calibration` may be a path (on the command line).

    Raises:
        InvalidInputError: something in the request is wrong; the error lists every problem.
        CalibrationError: a calibration cannot be used.
    """
    asked = parse_request(request) if asked is None else asked
    job = job_of_request(
        resolve_pooled_job(request, extra=calibrations, allow_files=allow_files, states_version=True), asked
    )
    refuse_contradictions(asked, job)
    resolved = resolved_request(asked, job)
    calibration_id = " ".join(each.calibration.id for each in job.jobs)
    digest = request_digest(resolved, calibration_id=calibration_id, revision=model_revision())
    exact, late = without_late_updates(asked), with_late_updates(asked)
    return CheckedRequest(request, exact, job, resolved, digest, calibrations or {}, allow_files, late)


def _with_example(document: Any, problem: Problem) -> Problem:
    """The problem itself, or for a specification given as a name or a number one that shows how to write it as an object."""
    name = problem.pointer.removeprefix("/")
    if name not in ("model", "cluster", "training") or isinstance(document.get(name, {}), Mapping):
        return problem
    return missing_or_wrong(document, name).problems[0]


def request_digest(resolved: Mapping[str, Any], *, calibration_id: str, revision: str) -> str:
    """SHA-256 of everything that determines the ranking: request, product version, model revision and calibration."""
    # How long a client is willing to wait changes nothing in the answer, so `wait_s` must not make a second job of a request.
    content = {name: value for name, value in resolved.items() if name != "wait_s"}
    text = json.dumps([content, PRODUCT_VERSION, revision, calibration_id], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
