"""What stands in for the parts of a plan that a file has no room for."""

from __future__ import annotations

from collections.abc import Sequence

from app.report.report import PlanView
from app.report.section import Section, section


def short(plan: PlanView, *, left_out: Sequence[str]) -> Section:
    """Which parts of a plan are left out, and where they are told; no name stands for all of them."""
    return section(
        "short",
        "Not in this file",
        rank=plan.rank,
        against=plan.plan.get("against_next"),
        left_out=left_out,
    )
