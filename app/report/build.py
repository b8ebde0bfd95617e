"""A report from a plan response: the response is checked, and every plan is completed from its request."""

from __future__ import annotations

from app.report.intact import require_intact
from app.report.report import Json, PlanView, Report
from cost_models.errors import InvalidInputError, Problem
from planner.one_plan.detail import completed_plans
from planner.one_plan.given import other_revision
from planner.request.job import Documents


def build_report(
    response: Json, *, allow_files: bool = False, address: str | None = None, calibrations: Documents | None = None
) -> Report:
    """The report of a plan response.

    Args:
        response: what `meshwright plan --json` printed or `GET /v1/plans/{id}` returned.
        allow_files: whether the request's `cluster.calibration` may be a path.
        address: path at which the report is served; None for a file.
        calibrations: the reader's own documents that the request may name, by id and name.

    Raises:
        cost_models.errors.InvalidInputError: the document is no plan response, lacks what can no longer be computed, or was
            written by another product or revision of the models.
    """
    # Groups of ranks, the timeline and launch files are computed, not read: another revision's would contradict its numbers.
    # An answer that is still awaited has no revision yet, and its state says more.
    is_awaited = response.get("status") in ("queued", "running", "failed", "cancelled")
    if "plans" in response and not is_awaited and (other := other_revision(response)):
        message = f"the response was written by {other}"
        hint = "Make the report with the version that wrote it, or plan again with this one."
        raise InvalidInputError([Problem("/model_revision", message, hint, "other-revision")])
    completed = completed_plans(response, extra=calibrations, allow_files=allow_files)
    require_intact(response)
    views = [
        PlanView(plan=plan, row=whole.row, evaluation=whole.evaluation, layers=whole.layers)
        for plan, whole in zip(response["plans"], completed, strict=True)
    ]
    return Report(
        response=response,
        plans=tuple(views),
        address=address,
        allow_files=allow_files,
        calibrations=calibrations or {},
    )
