"""Why the other strategies are not among the plans: counts by reason, what bounds excluded, and what was not searched."""

from __future__ import annotations

from app.report.figures.bars import length
from app.report.report import Report
from app.report.section import Section, section
from planner.answer.rejections import REJECTIONS


def rejected(report: Report) -> Section | None:
    search, found = report.response["search"], report.response["rejected"]
    if search is None:
        return None
    counts = sorted(found.items(), key=lambda item: -item[1])
    rows = [(code, f"They {REJECTIONS.get(code, f'break the rule {code}')}", count) for code, count in counts]
    rows.append(("", "They cannot be faster than the plans listed, by a bound on their time", search["bounded"]))
    rows.append(("", "They were priced in full", search["evaluated"]))
    rows.append(("", "They were not searched, because the search ended before", search["unsearched"]))
    # An exact search leaves nothing unsearched, and a line that says 0 would only be in the way.
    rows = [row for row in rows if row[2]]
    # A share of three strategies in a million still deserves a visible bar, hence the square root.
    longest = max((count for *_, count in rows), default=1) ** 0.5
    return section(
        "rejected",
        "What became of all strategies",
        total=search["total"],
        elapsed_s=search["elapsed_s"],
        rows=[
            {
                "code": code,
                "told": told,
                "count": count,
                "bar": length("count", count**0.5 / longest),
            }
            for code, told, count in rows
        ],
        not_searched=search["not_searched"],
    )
