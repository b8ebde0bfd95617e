"""The report of a stored plan: the answer put together again with the detail of its ranks, and its pages."""

from __future__ import annotations

import json
from typing import Any

from app.errors import NotFoundError, WrongStateError
from app.report.build import build_report
from app.report.pages import Link, plan_page, report_page
from app.report.report import Report
from app.service.db.plans import PlanRow
from app.service.intake.examples import EXAMPLE_PLAN_ID
from app.service.parts import Service
from app.service.web.rendering import ASSETS, HOME, SITE
from cost_models.hardware import document_of


def report_html(service: Service, tenant: str, plan: PlanRow) -> str:
    """The page of a whole report.

    Raises:
        InvalidInputError: another version of the program gave the answer.
    """
    report = stored_report(service, tenant, plan)
    return report_page(report, assets=ASSETS, home=HOME, site=links_of(plan), notice=notice_of(plan))


def plan_html(service: Service, tenant: str, plan: PlanRow, rank: int) -> str:
    """The page of one ranked plan.

    Raises:
        NotFoundError: there is no such rank.
        InvalidInputError: another version of the program gave the answer.
    """
    report = stored_report(service, tenant, plan)
    require_rank(report, rank)
    return plan_page(report, rank, assets=ASSETS, home=HOME, site=links_of(plan), notice=notice_of(plan))


def require_rank(report: Report, rank: int) -> None:
    """Refuses a rank that the report does not list."""
    if rank not in [view.rank for view in report.plans]:
        raise NotFoundError(f"this answer has no plan {rank}", hint=f"It has {len(report.plans)} plans.")


def stored_report(service: Service, tenant: str, plan: PlanRow) -> Report:
    """The report of a plan that has succeeded."""
    # What the answer leaves out, such as the schedule, is computed with the calibrations that it was priced with, which travelled
    # with the job: they are what the request meant, whatever the tenant has stored since.
    kept = json.loads(plan.request)["calibrations"]
    calibrations = {name: document_of(content) for name, content in kept.items()}
    return build_report(stored_response(service, tenant, plan), address=f"/plans/{plan.id}", calibrations=calibrations)


def stored_response(service: Service, tenant: str, plan: PlanRow) -> dict[str, Any]:
    """The whole answer, with every stage of every plan.

    Raises:
        WrongStateError: the plan has not succeeded.
    """
    if plan.status != "succeeded" or not plan.response:
        raise WrongStateError(f"plan {plan.id} is {plan.status}", hint="There is a report once it has succeeded.")
    response: dict[str, Any] = json.loads(plan.response)
    # The stages are stored rank by rank, apart from the summary.
    ranked = [json.loads(text) for text in service.plans.all_ranked(tenant, plan.id)]
    return {**response, "plans": ranked}


def notice_of(plan: PlanRow) -> str:
    """What a reader must know of a plan as a whole; empty where there is nothing."""
    return "An example of the documentation: nobody asked for it here." if plan.id == EXAMPLE_PLAN_ID else ""


def links_of(plan: PlanRow) -> tuple[Link, ...]:
    """What the pages of a plan link to beside those of the service."""
    return (
        *SITE,
        {"href": f"/?from={plan.id}", "label": "Change this request"},
        {"href": f"/plans/{plan.id}/why-not", "label": "Why not mine?"},
        {"href": f"/plans/{plan.id}/response.json", "label": "As JSON"},
    )
