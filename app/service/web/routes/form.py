"""The form at `/`: shown, checked while it is filled in, and sent. Without scripts it is an ordinary form that comes back with its
errors and everything that was written into it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.errors import status_of
from app.service.api.dependencies import Here
from app.service.api.examples.requests import example_calibrations
from app.service.intake.own_calibrations import AUTO
from app.service.parts import Service
from app.service.submission import submit_request
from app.service.web.filled import FilledForm
from app.service.web.form import fields as form_fields
from app.service.web.form.checked import CheckedForm, check_form
from app.service.web.form.fields import FIELDS, Field, Values, first_values
from app.service.web.form.values import values_of
from app.service.web.rendering import HTMX, fragment, html, page
from app.service.web.visitors import OwnPage, Visitor
from cost_models.errors import MeshwrightError, Problem
from cost_models.frameworks import FRAMEWORKS
from cost_models.hardware import shipped_names

router = APIRouter(include_in_schema=False)
_OWN_CALIBRATIONS = 100
"""Most of a tenant's calibrations that the form lists, newest first; older ones can be named in a specification."""


async def _filled(given: FilledForm) -> Values:
    return {name: text for name, text in given.items() if name in FIELDS}


Filled = Annotated[Values, Depends(_filled)]


@router.api_route("/", methods=["GET", "HEAD"])
def show_form(
    visitor: Visitor, service: Here, again: Annotated[str | None, Query(alias="from", max_length=80)] = None
) -> HTMLResponse:
    """The form with a request that can be sent as it stands, or with that of an earlier plan."""
    values = first_values()
    if again is not None:
        values = values_of(json.loads(service.plans.get(visitor.tenant, again).request)["request"])
    return _form(check_form(values, tenant=visitor.tenant, service=service), visitor.tenant, service)


@router.post("/web/check", dependencies=[OwnPage])
async def check(visitor: Visitor, filled: Filled, service: Here) -> HTMLResponse:
    """The problems of the form as it stands, each for its field, and what it resolves to."""
    checked = await run_in_threadpool(check_form, filled, tenant=visitor.tenant, service=service)
    shown = [field for field in FIELDS.values() if field.kind != "way"]
    return html(fragment("check", checked=checked, fields=shown))


@router.post("/plans", dependencies=[OwnPage])
async def send_form(visitor: Visitor, filled: Filled, service: Here) -> Response:
    """The page of the plan that answers the form, or the form again with what is wrong."""
    checked = await run_in_threadpool(check_form, filled, tenant=visitor.tenant, service=service)
    status = 422
    if checked.prepared is not None:
        try:
            plan = await submit_request(service, checked.prepared, tenant=visitor.tenant, wait_s=0.0)
        except MeshwrightError as error:
            # Refused for another reason than the request, such as too many jobs: the form must not be lost over it.
            problem = Problem("", error.message, error.hint, error.code)
            checked = CheckedForm(checked.values, (problem,), checked.resolved, None)
            status = status_of(error)
        else:
            return RedirectResponse(f"/plans/{plan.id}", status_code=303)
    return await run_in_threadpool(_form, checked, visitor.tenant, service, status=status)


def _form(checked: CheckedForm, tenant: str, service: Service, *, status: int = 200) -> HTMLResponse:
    parts: dict[str, Any] = {
        part: {field.name.partition(".")[2]: field for field in getattr(form_fields, part.upper())}
        for part in ("model", "cluster")
    }
    lists: dict[str, Any] = {
        "training": form_fields.TRAINING,
        "adapter": form_fields.ADAPTER,
        "more": form_fields.MORE_TRAINING,
        "targets": form_fields.TARGETS,
        "search": form_fields.SEARCH,
    }

    def opened(fields: tuple[Field, ...]) -> bool:
        """Whether a folded part is shown open: something in it is wrong, or was said."""
        usual = first_values()
        return any(checked.at(f) or checked.values.get(f.name, "") not in ("", usual.get(f.name)) for f in fields)

    return page(
        "form",
        title="A new plan",
        status=status,
        scripts=(*HTMX, "/static/form.js"),
        checked=checked,
        refused=status != 200,
        calibrations=_calibrations(tenant, service),
        releases=_releases(),
        opened=opened,
        **parts,
        **lists,
    )


def _calibrations(tenant: str, service: Service) -> list[tuple[str, str]]:
    """What may price the plan: nothing of the tenant's, its newest, one of its own, or one that is shipped."""
    own = service.calibrations.page(tenant, limit=_OWN_CALIBRATIONS)
    listed = [("", "public curves of the GPU"), (AUTO, "auto: my newest")]
    # The documentation's examples are left out: numbers that were invented must not price a plan by a slip in a menu.
    listed += [
        (row.id, f"{row.gpu}, {row.created_at:%Y-%m-%d}, {row.id[:12]}")
        for row in own
        if row.id not in example_calibrations()
    ]
    return listed + [(name, f"{name} (shipped)") for name in shipped_names()]


def _releases() -> list[tuple[str, str]]:
    """The known releases of all frameworks, newest first within each."""
    return [(version, facts.name) for facts in FRAMEWORKS.values() for version, _ in reversed(facts.releases)]
