"""The whole run of a plan: its days, GPU-hours, cost and energy, and what failures and checkpoints take of it."""

from __future__ import annotations

from app.report.report import Json, PlanView, Report
from app.report.run_words import VARIANT_COLUMNS, run_facts, variant_rows
from app.report.section import Section, section


def run(_report: Report, plan: PlanView) -> Section | None:
    return run_section(plan.evaluation)


def run_section(evaluation: Json) -> Section | None:
    """The run of an evaluation; None where the training has no number of tokens."""
    found = evaluation.get("run")
    if found is None:
        return None
    return section(
        "run", "The whole run", facts=list(run_facts(found)), columns=VARIANT_COLUMNS, rows=variant_rows(found)
    )
