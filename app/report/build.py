"""A report from a plan response: the response is checked, and every plan is completed from its request."""

from __future__ import annotations

from app.report.report import Json, PlanView, Report
from planner.one_plan.detail import completed_plan


def build_report(response: Json, *, allow_files: bool = False, address: str | None = None) -> Report:
    """The report of a plan response.

    Args:
        response: what `meshwright plan --json` printed or `GET /v1/plans/{id}` returned.
        allow_files: whether the request's `cluster.calibration` may be a path.
        address: path at which the report is served; None for a file.

    Raises:
        cost_models.errors.InvalidInputError: the document is no plan response, or lacks what can no longer be computed.
    """
    views = []
    for plan in response["plans"]:
        row, evaluation, layers = completed_plan(response, plan["rank"], allow_files=allow_files)
        views.append(PlanView(plan=plan, row=row, evaluation=evaluation, layers=layers))
    return Report(response=response, plans=tuple(views), address=address)
