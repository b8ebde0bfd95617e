"""Pages and files of a stored plan for a visitor: what is stored is read here, and an answering process computes the rest."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from app.errors import WrongStateError
from app.service.api.answering import Function, computed
from app.service.db.plans import PlanRow
from app.service.intake.examples import EXAMPLE_PLAN_ID
from app.service.parts import Service
from app.service.web.computed_pages import StoredAnswer


async def of_plan(request: Request, service: Service, tenant: str, plan_id: str, function: Function, *args: Any) -> Any:
    """What this function of `computed_pages` makes of the tenant's plan.

    Raises:
        NotFoundError, WrongStateError: the tenant has no such plan, or it has not succeeded.
        RelayedError: what the function raised.
    """
    stored = await run_in_threadpool(_read, service, tenant, plan_id)
    (made,) = await computed(request, service, tenant, function, stored, *args)
    return made


def _read(service: Service, tenant: str, plan_id: str) -> StoredAnswer:
    plan = service.plans.get(tenant, plan_id)
    if plan.status != "succeeded" or not plan.response:
        raise WrongStateError(f"plan {plan.id} is {plan.status}", hint="There is a report once it has succeeded.")
    # The stages are stored rank by rank, apart from the summary.
    ranked = tuple(service.plans.all_ranked(tenant, plan_id))
    return StoredAnswer(plan.id, plan.request, plan.response, ranked, _notice_of(plan))


def _notice_of(plan: PlanRow) -> str:
    return "An example of the documentation: nobody asked for it here." if plan.id == EXAMPLE_PLAN_ID else ""
