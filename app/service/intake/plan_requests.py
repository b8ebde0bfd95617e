"""From a posted request to a job: the request is checked here, so that a bad one is refused at once, and gets its limits.

The request is parsed once and its job resolved once on this way. The worker that plans it later is another process, perhaps of
a later day: it gets the stored document and reads it again (`app.service.jobs.plan_task`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.service.db.calibrations import CalibrationStore
from app.service.db.plan_result import encoded
from app.service.intake.own_calibrations import OwnCalibrations
from app.service.intake.own_corrections import OwnCorrections
from cost_models.errors import CalibrationError, InvalidInputError, Problem
from planner.request.checked_request import check_request, parse_request

# A search that reaches its limit still has to rank and explain what it found. That takes well under a second, several times as
# long on a busy machine, and stopping the worker earlier would throw the best plans so far away.
_STOP_AFTER_S = 5.0
"""Seconds that a job may run past the request's own time limit before its worker is stopped."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that has been checked and can become a job."""

    digest: str
    payload: str
    """What the job is given, as JSON: the `request` as it was asked, and the tenant's `calibrations` that it names."""
    time_limit_s: float
    """Seconds after which the job is stopped."""
    wait_s: float
    names_stored: bool
    """Whether it names calibrations or is priced with the tenant's corrections, so that checking the same bytes again may give another request."""


def prepare_request(
    document: Any,
    *,
    tenant: str,
    calibrations: CalibrationStore,
    job_time_limit_s: float,
    corrections: OwnCorrections | None = None,
) -> PreparedRequest:
    """The job for this request.

    Raises:
        InvalidInputError: with every broken rule that shows without a search.
    """
    # Parsed before calibrations are looked up, so that a request which its schema refuses costs no query.
    asked = parse_request(document)
    own = OwnCalibrations(calibrations, tenant=tenant)
    (request,) = own.named([document])
    try:
        prepared = check_request(request, asked=asked, calibrations=own.found)
        learnt = None if corrections is None else corrections.of_request(tenant, request, extra=own.found)
        if learnt is not None:
            request, prepared = learnt, check_request(learnt, calibrations=own.found)
    except CalibrationError as error:
        at = str(error.context.get("field", "/cluster/calibration"))
        raise InvalidInputError([Problem(at, error.message, error.hint, error.code)]) from error
    # Calibrations travel in full, so that a worker process needs no access to the storage.
    texts = {name: found.model_dump(mode="json", exclude_defaults=True) for name, found in own.found.items()}
    limit_s = job_time_limit_s if asked.time_limit_s is None else asked.time_limit_s + _STOP_AFTER_S
    return PreparedRequest(
        digest=prepared.digest,
        payload=encoded({"request": request, "calibrations": texts}),
        time_limit_s=min(limit_s, job_time_limit_s),
        wait_s=asked.wait_s,
        names_stored=own.names_any or learnt is not None,
    )
