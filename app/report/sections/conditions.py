"""Which communication of a plan computation could hide, and what would have to be larger where it cannot."""

from __future__ import annotations

from app.report.report import Json, PlanView, Report
from app.report.run_words import CONDITION_COLUMNS, CONDITIONS_NOTE, condition_rows
from app.report.section import Section, section


def conditions(_report: Report, plan: PlanView) -> Section | None:
    return conditions_section(plan.evaluation)


def conditions_section(evaluation: Json) -> Section | None:
    """The conditions of an evaluation; None where nothing communicates, or where they are not told."""
    rows = condition_rows(evaluation)
    if not rows:
        return None
    return section(
        "conditions", "What could hide communication", columns=CONDITION_COLUMNS, rows=rows, note=CONDITIONS_NOTE
    )
