"""Plans that change the mathematics of training: ranked apart, each with the extra steps at which it stops being faster."""

from __future__ import annotations

from app.report.method_words import CHANGED_COLUMNS, CHANGED_NOTE, changed_rows
from app.report.report import Report
from app.report.section import Section, section


def changed(report: Report) -> Section | None:
    rows = list(changed_rows(report.response))
    if not rows:
        return None
    return section(
        "changed", "Plans that change the mathematics", columns=CHANGED_COLUMNS, rows=rows, note=CHANGED_NOTE
    )
