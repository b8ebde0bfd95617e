"""The plan response around what a search found."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from planner.prepared import PRODUCT_VERSION, Prepared
from planner.schemas.plan_response import SCHEMA_VERSION


def answered(prepared: Prepared, *, stopped: str | None, **found: Any) -> dict[str, Any]:
    """The contract's response; `found` holds plans, ties, search, rejected, nearest_infeasible, inexpressible_best, warnings."""
    return {
        "id": f"plan_{prepared.digest[:16]}",
        "status": "cancelled" if stopped == "cancelled" else "succeeded",
        "created_at": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "product_version": PRODUCT_VERSION,
        "schema_version": SCHEMA_VERSION,
        "request": prepared.resolved,
        **found,
        "pareto": [],
        "what_if": [],
        "request_digest": prepared.digest,
    }


def stop_warnings(stopped: str | None, *, time_limit_s: float | None) -> list[str]:
    """What an early stop means for the ranking."""
    if stopped == "time":
        return [f"the search stopped at time_limit_s {time_limit_s:g}: the ranking is the best so far"]
    if stopped == "cancelled":
        return ["the search was cancelled: the ranking is the best so far"]
    return []
