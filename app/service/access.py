"""Which scope a key needs for which call. This table is the only place that says so, and no route can be left out of it.

The application is not built while a route is missing here, or while a route that needs a scope does not ask who calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from app.scopes import Scope

NEEDED: Mapping[str, Scope | None] = {
    "POST /v1/plans": "plan",
    "GET /v1/plans": "read",
    "GET /v1/plans/{plan_id}": "read",
    "GET /v1/plans/{plan_id}/ranked/{rank}": "read",
    "GET /v1/plans/{plan_id}/events": "read",
    "GET /v1/plans/{plan_id}/exports/{framework}": "read",
    "DELETE /v1/plans/{plan_id}": "plan",
    "POST /v1/evaluate": "plan",
    "POST /v1/judge": "plan",
    "POST /v1/calibrations": "profile",
    "GET /v1/calibrations": "read",
    "GET /v1/calibrations/{calibration_id}": "read",
    "DELETE /v1/calibrations/{calibration_id}": "profile",
    "POST /v1/observations": "profile",
    "GET /v1/observations": "read",
    "GET /v1/observations/{observation_id}": "read",
    "DELETE /v1/observations/{observation_id}": "profile",
    "GET /v1/corrections": "read",
    "GET /v1/corrections/{correction_id}": "read",
    "PUT /v1/corrections/{correction_id}": "profile",
    "POST /v1/profiling-jobs": "profile",
    "GET /v1/profiling-jobs": "read",
    "GET /v1/profiling-jobs/{job_id}": "read",
    "DELETE /v1/profiling-jobs/{job_id}": "profile",
    "POST /v1/tunings": "profile",
    "GET /v1/tunings": "read",
    "GET /v1/tunings/{tuning_id}": "read",
    "DELETE /v1/tunings/{tuning_id}": "profile",
    "GET /v1/tunings/{tuning_id}/events": "read",
    "POST /v1/agents": "profile",
    "GET /v1/agents": "read",
    "GET /v1/agents/{agent_id}": "read",
    "POST /v1/agents/{agent_id}/lease": "profile",
    "POST /v1/agents/{agent_id}/heartbeat": "profile",
    "POST /v1/agents/{agent_id}/results": "profile",
    "POST /v1/keys": "admin",
    "GET /v1/keys": "admin",
    "DELETE /v1/keys/{key_id}": "admin",
    "GET /v1/audit": "admin",
    # What shows nobody's data is open to everybody.
    "GET /v1/presets/models": None,
    "GET /v1/presets/gpus": None,
    "GET /v1/presets/clusters": None,
    "GET /v1/presets/frameworks": None,
    "GET /healthz": None,
    "GET /readyz": None,
    "GET /metrics": "read",
    # The pages. Whoever enters a key or reads the documentation has none yet.
    "GET /": "read",
    "POST /web/check": "plan",
    "POST /plans": "plan",
    "GET /plans": "read",
    "GET /plans/{plan_id}": "read",
    "POST /plans/{plan_id}/cancel": "plan",
    "GET /plans/{plan_id}/progress": "read",
    "GET /plans/{plan_id}/finished": "read",
    "GET /plans/{plan_id}/ranked/{rank}": "read",
    "GET /plans/{plan_id}/compare": "read",
    "GET /plans/{plan_id}/why-not": "read",
    "POST /plans/{plan_id}/why-not": "plan",
    "GET /plans/{plan_id}/ranked/{rank}/trace.json": "read",
    "GET /plans/{plan_id}/ranked/{rank}/memory.pickle": "read",
    "GET /plans/{plan_id}/ranked/{rank}/exports/{framework}": "read",
    "GET /plans/{plan_id}/response.json": "read",
    "GET /tunings": "read",
    "GET /tunings/{tuning_id}": "read",
    "POST /tunings/{tuning_id}/cancel": "profile",
    "GET /tunings/{tuning_id}/progress": "read",
    "GET /tunings/{tuning_id}/finished": "read",
    "GET /tunings/{tuning_id}/tuning.json": "read",
    "GET /calibrations": "read",
    "POST /agents/{agent_id}/measure": "profile",
    "GET /calibrations/{name}": "read",
    "GET /key": None,
    "POST /key": None,
    "POST /key/forget": None,
    "GET /docs": None,
}
"""By method and path template: the scope, or None where no key is needed. HEAD needs what GET needs."""


def scope_needed(method: str, path: str) -> Scope | None:
    """The scope that a call of this method on this path template needs; None where it needs no key."""
    return NEEDED[f"{'GET' if method == 'HEAD' else method} {path}"]


def require_guarded(router: APIRouter, guards: frozenset[Callable[..., Any]]) -> None:
    """Asserts that the table names every route of this router, and that each that needs a scope asks one of `guards` who calls."""
    for route in router.routes:
        assert isinstance(route, APIRoute), route
        for method in route.methods or ():
            needed = scope_needed(method, route.path)
            assert needed is None or guards & set(_asked(route.dependant)), (
                f"{method} {route.path} asks nobody for a key"
            )


def _asked(dependant: Dependant) -> Iterator[Callable[..., Any]]:
    for each in dependant.dependencies:
        if each.call is not None:
            yield each.call
        yield from _asked(each)
