"""The pages of a report: the same sections in a file that holds everything and on the pages that the service shows."""

from __future__ import annotations

from collections.abc import Callable

from app.report.report import PlanView, Report
from app.report.section import Section

ReportSection = Callable[[Report], Section | None]
"""A section about the whole response; None where the response has nothing to show there."""
PlanSection = Callable[[Report, PlanView], Section | None]
"""A section about one plan."""

ABOVE_PLANS: tuple[ReportSection, ...] = ()
"""What a reader sees first, in this order."""
OF_A_PLAN: tuple[PlanSection, ...] = ()
"""What is told of each plan, in this order."""
BELOW_PLANS: tuple[ReportSection, ...] = ()
"""What follows about the response as a whole."""
