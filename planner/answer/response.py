"""The plan response that is built around what a search found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cost_models.units import GIB
from planner.answer.evaluation import UNKNOWN_HOST
from planner.request.checked_request import PRODUCT_VERSION, CheckedRequest
from planner.revision import model_revision
from planner.schemas.base import SCHEMA_VERSION


def plan_response(checked: CheckedRequest, *, stopped: str | None, **found: Any) -> dict[str, Any]:
    """The contract's plan response.

    Args:
        checked: the checked request.
        stopped: why the search ended early, None where it did not.
        found: the fields plans, ties, search, rejected, nearest_infeasible, inexpressible_best and warnings.
    """
    return {
        "id": f"plan_{checked.digest[:16]}",
        # A search that ran out of time has succeeded: its plans are valid, and the proof says what is open.
        "status": "cancelled" if stopped == "cancelled" else "succeeded",
        "created_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "product_version": PRODUCT_VERSION,
        "model_revision": model_revision(),
        "schema_version": SCHEMA_VERSION,
        **found,
        "changed_plans": [],
        "pareto": [],
        "what_if": [],
        "request_digest": checked.digest,
        # Last, because readers look for the plans first, and the request is long and known to them.
        "request": checked.resolved,
    }


def search_report(
    *,
    best_s: float | None,
    bound_s: float | None,
    optimal: bool,
    methods: list[str],
    space: dict[str, Any],
    not_searched: dict[str, str],
    **counted: float,
) -> dict[str, Any]:
    """The contract's `search`; `counted` holds the counts of strategies and elapsed_s."""
    gap = None
    if best_s is not None and bound_s is not None:
        # The bound of a proved optimum may differ from it in the last bits, which must not show as a gap.
        gap = 0.0 if optimal else max(0.0, (best_s - bound_s) / best_s)
    proof = {"optimal": optimal, "gap": gap, "lower_bound_s": bound_s}
    return {"methods": methods, "space": space, "not_searched": not_searched, **counted, "proof": proof}


def stop_warnings(stopped: str | None, *, time_limit_s: float | None) -> list[str]:
    """A sentence on what an early stop means for the ranking; empty where the search ended by itself."""
    if stopped == "time":
        return [
            f"The search reached time_limit_s {time_limit_s:g} and stopped; the plans are the best found until then."
        ]
    if stopped == "cancelled":
        return ["The search was cancelled; the plans are the best found until then."]
    return []


def host_warnings(plans: Sequence[Mapping[str, Any]]) -> list[str]:
    """How much host memory the ranked plans need, where the request does not say how much there is."""
    needs = [
        plan["evaluation"]["memory"]["host_bytes_per_node"]
        for plan in plans
        if any(reason["code"] == UNKNOWN_HOST for reason in plan["evaluation"]["reasons"])
    ]
    if not needs:
        return []
    some = f"{len(needs)} of the {len(plans)} plans" if len(needs) < len(plans) else "Every plan"
    needed = f"{some} would keep up to {max(needs) / GIB:,.0f} GiB in the memory of each host"
    return [f"{needed}, but host_memory_gib is not given. Check that every node has that much."]
