"""A plan that somebody asks for, through the API or through the form: the same checks, digests, ids and limits for both."""

from __future__ import annotations

from fastapi.concurrency import run_in_threadpool

from app.errors import NotFoundError, WrongStateError
from app.service.db.jobs import FINISHED, JobKey
from app.service.db.plans import PlanRow, Submission
from app.service.intake.plan_requests import PreparedRequest
from app.service.parts import Service


async def submit_request(
    service: Service,
    asked: PreparedRequest,
    *,
    tenant: str,
    wait_s: float,
    priority: int | None = None,
    idempotency_key: str | None = None,
    body_sha256: str = "",
) -> PlanRow:
    """The plan that answers a checked request, finished if that takes no longer than `wait_s`.

    Raises:
        InvalidInputError: the idempotency key was used for another body.
        QuotaError: the tenant has too much stored.
        TooManyJobsError: the tenant has too many unfinished jobs.
        WrongStateError: somebody deleted the plan in the meantime.
    """
    submission = Submission(
        digest=asked.digest,
        request=asked.payload,
        time_limit_s=asked.time_limit_s,
        priority=priority,
        idempotency_key=idempotency_key,
        body_sha256=body_sha256,
    )
    submitted = await run_in_threadpool(service.plans.submit, tenant, submission)
    key = JobKey(tenant, submitted.id)
    if submitted.is_new:
        service.runner.submit(key)
        await service.runner.wait(key, timeout_s=wait_s)
    plan = await run_in_threadpool(_submitted, service, key)
    # An older request's plan is looked at before waiting: it is mostly finished, and then nobody would wake us.
    if plan.status not in FINISHED and not submitted.is_new:
        await service.runner.wait(key, timeout_s=wait_s)
        plan = await run_in_threadpool(_submitted, service, key)
    return plan


def _submitted(service: Service, key: JobKey) -> PlanRow:
    try:
        return service.plans.get(key.tenant, key.id)
    except NotFoundError as error:
        message = f"plan {key.id} was deleted while this request waited for it"
        raise WrongStateError(message, hint="Ask again to have it planned anew.") from error
