"""Which algorithm is assumed for the collectives of each group of ranks, and what of their time is latency and what is bytes."""

from __future__ import annotations

from app.collective_words import CALL_COLUMNS, CALLS_NOTE, call_rows
from app.report.report import Json, PlanView, Report
from app.report.section import Section, section


def collectives(_report: Report, plan: PlanView) -> Section | None:
    return collectives_section(plan.evaluation)


def collectives_section(evaluation: Json) -> Section | None:
    """The collectives of an evaluation; None where nothing communicates, or where they are not told."""
    rows = call_rows(evaluation)
    if not rows:
        return None
    return section(
        "collectives",
        "Collectives",
        folded=True,
        columns=CALL_COLUMNS,
        rows=rows,
        note=CALLS_NOTE,
        numbers=(2, 3, 4, 6, 7),
    )
