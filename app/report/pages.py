"""The pages of a report: the same sections in a file that holds everything and on the pages that the service shows.

The tuples list what is told and in which order; a section that has nothing to show is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from app.report.frame import STYLE, Frame, asset, frame_of_file, frame_of_page, in_few_bytes
from app.report.report import PlanView, Report
from app.report.section import Section, environment
from app.report.sections.changed import changed
from app.report.sections.collectives import collectives
from app.report.sections.compare import compare
from app.report.sections.conditions import conditions
from app.report.sections.flips import flips
from app.report.sections.launch import launch
from app.report.sections.layers import layers
from app.report.sections.memory import memory
from app.report.sections.mesh import mesh
from app.report.sections.nearest import nearest, nearly
from app.report.sections.pareto import pareto
from app.report.sections.ranking import ranking
from app.report.sections.rejected import rejected
from app.report.sections.run import run
from app.report.sections.short import short
from app.report.sections.time import time
from app.report.sections.timeline import timeline
from app.report.sections.trust import trust
from app.report.sections.verdict import verdict
from app.report.sections.what_if import what_if
from app.report.sections.why_not import why_not
from app.report.words import gist, job_line, page_title, strategy_in_words

ReportSection = Callable[[Report], Section | None]
"""A section about the whole response; None where the response has nothing to show there."""
PlanSection = Callable[[Report, PlanView], Section | None]
"""A section about one plan."""

ABOVE_PLANS: tuple[ReportSection, ...] = (verdict, nearest, trust, flips, ranking)
"""What a reader sees first, in this order."""
OF_A_PLAN: tuple[PlanSection, ...] = (memory, time, run, timeline, conditions, collectives, mesh, layers, launch)
"""What is told of each plan, in this order."""
BELOW_PLANS: tuple[ReportSection, ...] = (changed, compare, pareto, what_if, rejected, nearly, why_not)
"""What follows about the response as a whole."""
Link = Mapping[str, str]
"""A link as {href, label}."""
MOST_BYTES = 245_000
"""Size of a file without its scripts up to which plans are told in full: what opens at once, and what a mail takes."""
LISTED = 24
"""Plans that a file tells of, near-copies left out; what follows them stands in the table alone."""


def report_file(report: Report, *, scripts: bool = True, most_bytes: int = MOST_BYTES) -> str:
    """The report as one HTML document that needs no network and no other file.

    Args:
        report: what is reported, without an address.
        scripts: whether scripts are written into it, which sort tables and make figures answer to the pointer; it is complete
            without them.
        most_bytes: size without scripts up to which plans are told in full; of the first one, its whole step alone is left out.
    """
    # A near-copy differs from its leader in a knob that changes nothing a reader would see in its figures.
    shown = [view for view in report.plans if report.leader(view.rank) == view.rank]
    parts = _parts(report, shown[:LISTED], most_bytes=most_bytes)
    others = len(shown) - LISTED
    told = f"{others} further plans stand in the table alone." if others > 0 else ""
    frame = frame_of_file(_scripts(parts), wanted=scripts)
    return _rendered("report.html", report, frame, **parts, folds=True, others=told)


def report_page(
    report: Report, *, assets: str = "/assets", home: str = "/", site: Sequence[Link] = (), notice: str = ""
) -> str:
    """The served page of a report: the response, its best plan in full, and links to the pages of the others.

    Args:
        report: what is reported, with its address.
        assets: path under which the stylesheet and the scripts are served.
        home: path of the page that the name of the product leads to.
        site: what every served page links to, beside the name of the product.
        notice: what a reader must know of the report as a whole, under its title.
    """
    parts = _parts(report, report.plans[:1])
    frame = frame_of_page(_scripts(parts), assets=assets)
    return _rendered("report.html", report, frame, **parts, folds=False, others="", home=home, site=site, notice=notice)


def plan_page(
    report: Report, rank: int, *, assets: str = "/assets", home: str = "/", site: Sequence[Link] = (), notice: str = ""
) -> str:
    """The served page of one plan; the other arguments are those of `report_page`."""
    view = report.plan(rank)
    told = _plan(report, view)
    ranks = [plan.rank for plan in report.plans]
    contents = [{"href": report.address or "#", "label": "Report"}]
    contents += [{"href": report.link(each), "label": f"Plan {each}"} for each in (rank - 1, rank + 1) if each in ranks]
    frame = frame_of_page(_scripts({"plans": [told]}), assets=assets)
    return _rendered("plan.html", report, frame, plan=told, contents=contents, home=home, site=site, notice=notice)


def _parts(report: Report, shown: Sequence[PlanView], *, most_bytes: int | None = None) -> dict[str, Any]:
    """The sections around the plans, those of each plan shown, and the table of contents."""
    above = _made(make(report) for make in ABOVE_PLANS)
    below = _made(make(report) for make in BELOW_PLANS)
    plans = _told(report, shown, room=None if most_bytes is None else most_bytes - _size([*above, *below]) - _AROUND)
    contents = [{"href": f"#{section.name}", "label": section.title} for section in above]
    contents += [{"href": f"#plan-{plan['rank']}", "label": f"Plan {plan['rank']}"} for plan in plans[:1]]
    contents += [{"href": f"#{section.name}", "label": section.title} for section in below]
    return {"above": above, "plans": plans, "below": below, "contents": contents}


_LEAST_ROOM = 8_000
"""Bytes below which no figure of a plan is tried."""
_AROUND = 4_000 + len(in_few_bytes(asset(STYLE)))
"""Bytes of a file around its sections."""
_HEADING = 250
"""Bytes around a section's body."""


def _told(report: Report, shown: Sequence[PlanView], *, room: int | None) -> list[dict[str, Any]]:
    """Plans as far as there is room: the first one in full, of the others what fits, which is said; None for no limit."""
    plans: list[dict[str, Any]] = []
    for view in shown:
        limit = room if plans else None
        # Rendering what cannot be shown would cost more than all the rest.
        tried = limit is None or limit > _LEAST_ROOM
        sections: list[Section] = []
        left_out: list[str] = []
        made = _made(make(report, view) for make in OF_A_PLAN) if tried else []
        # The first plan is told in full; of its figures only the whole step repeats what another one shows.
        if limit is None and room is not None and _size(made) > room:
            brief = timeline(report, view, room_for_whole=False)
            made = [brief if brief is not None and section.name == brief.name else section for section in made]
        for section in made:
            if limit is None or _size([section]) <= limit:
                sections.append(section)
                limit = None if limit is None else limit - _size([section])
            else:
                left_out.append(section.title)
        if left_out or not tried:
            sections.append(short(view, left_out=left_out))
        room = None if room is None else room - _size(sections)
        plans.append(_headed(view, sections))
    return plans


def _size(sections: Iterable[Section]) -> int:
    return sum(len(section.body.encode()) + _HEADING for section in sections)


def _plan(report: Report, view: PlanView) -> dict[str, Any]:
    return _headed(view, _made(make(report, view) for make in OF_A_PLAN))


def _headed(view: PlanView, sections: list[Section]) -> dict[str, Any]:
    """A plan as the templates show it: its line, its strategy in words, its sections."""
    return {"rank": view.rank, "gist": gist(view), "strategy": strategy_in_words(view), "sections": sections}


def _made(sections: Iterable[Section | None]) -> list[Section]:
    return [section for section in sections if section is not None]


def _scripts(parts: Mapping[str, Any]) -> list[str]:
    of_plans = [section for plan in parts["plans"] for section in plan["sections"]]
    sections = [*parts.get("above", ()), *of_plans, *parts.get("below", ())]
    return [name for section in sections for name in section.scripts]


def _rendered(template: str, report: Report, frame: Frame, **shown: Any) -> str:
    response = report.response
    origin = (
        f"meshwright {response['product_version']}, models of revision {response['model_revision']}; "
        f"{response['id']}, {response['created_at']}"
    )
    return (
        environment()
        .get_template(template)
        .render(frame=frame, title=page_title(report), job=job_line(report), origin=origin, **shown)
    )
