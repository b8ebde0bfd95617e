"""The plan response around what a search found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cost_models.units import GIB
from planner.answer.evaluation import UNKNOWN_HOST
from planner.request.checked_request import PRODUCT_VERSION, Prepared
from planner.revision import model_revision
from planner.schemas.plan_response import SCHEMA_VERSION


def answered(prepared: Prepared, *, stopped: str | None, **found: Any) -> dict[str, Any]:
    """The contract's response; `found` holds plans, ties, search, rejected, nearest_infeasible, inexpressible_best, warnings."""
    return {
        "id": f"plan_{prepared.digest[:16]}",
        "status": "cancelled" if stopped == "cancelled" else "succeeded",
        "created_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "product_version": PRODUCT_VERSION,
        "model_revision": model_revision(),
        "schema_version": SCHEMA_VERSION,
        "request": prepared.resolved,
        **found,
        "pareto": [],
        "what_if": [],
        "request_digest": prepared.digest,
    }


def search_report(
    *,
    best_s: float | None,
    bound_s: float | None,
    optimal: bool,
    methods: list[str],
    space: dict[str, Any],
    **counted: float,
) -> dict[str, Any]:
    """The contract's `search`; `counted` holds evaluated, feasible, elapsed_s."""
    gap = None
    if best_s is not None and bound_s is not None:
        gap = 0.0 if optimal else max(0.0, (best_s - bound_s) / best_s)
    proof = {"optimal": optimal, "gap": gap, "lower_bound_s": bound_s}
    return {"methods": methods, "space": space, **counted, "proof": proof}


def stop_warnings(stopped: str | None, *, time_limit_s: float | None) -> list[str]:
    """What an early stop means for the ranking."""
    if stopped == "time":
        return [f"the search stopped at time_limit_s {time_limit_s:g}: the ranking is the best so far"]
    if stopped == "cancelled":
        return ["the search was cancelled: the ranking is the best so far"]
    return []


def host_warnings(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """What ranked plans need of hosts of which nobody said how much memory they have."""
    needs = [
        plan["evaluation"]["memory"]["host_bytes_per_node"]
        for plan in plans
        if any(reason["code"] == UNKNOWN_HOST for reason in plan["evaluation"]["reasons"])
    ]
    if not needs:
        return []
    some = f"{len(needs)} of the {len(plans)} plans" if len(needs) < len(plans) else "every plan"
    needed = f"{some} would keep up to {max(needs) / GIB:,.0f} GiB in the memory of each host"
    return [f"{needed}, and host_memory_gib is not given: check that the nodes have as much"]
