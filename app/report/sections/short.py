"""A plan in short, where a file has no room for all that can be told of it."""

from __future__ import annotations

from app.report.report import PlanView, Report
from app.report.section import Section, section
from app.report.words import strategy_in_words


def short(_report: Report, plan: PlanView) -> Section:
    return section(
        "short",
        "In short",
        rank=plan.rank,
        strategy=strategy_in_words(plan),
        against=plan.plan.get("against_next"),
    )
