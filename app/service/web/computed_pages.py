"""The pages and files of a stored plan or tuning as an answering process computes them, from the texts that are stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from app.errors import NotFoundError, status_of
from app.report.build import build_report
from app.report.downloads import chrome_trace, memory_snapshot
from app.report.pages import Link, plan_page, report_page
from app.report.report import Report
from app.report.sections.compare import compare_page
from app.report.sections.why_not import answer_markup, form_markup, posted_strategy
from app.report.tuning.page import tuning_page
from app.report.words import job_line, page_title
from app.service.intake.own_calibrations import CalibrationSource
from app.service.web.rendering import ASSETS, HOME, REPORT_SCRIPTS, SITE, fragment, page_text
from cost_models.errors import MeshwrightError
from cost_models.hardware import document_of
from planner.why_not import why_not

_NOTHING = Markup()


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What is stored of a plan that has succeeded."""

    plan_id: str
    request: str
    """The request and the calibrations that it was priced with, as JSON."""
    response: str
    ranked: tuple[str, ...]
    """Its plans with every stage, as JSON, which the response holds only in summary."""
    notice: str
    """What a reader must know of the plan as a whole; empty where there is nothing."""

    @property
    def address(self) -> str:
        return f"/plans/{self.plan_id}"

    def whole_response(self) -> dict[str, Any]:
        """The whole answer, with every stage of every plan."""
        response: dict[str, Any] = json.loads(self.response)
        return {**response, "plans": [json.loads(text) for text in self.ranked]}

    def report(self) -> Report:
        """The report of the plan.

        Raises:
            InvalidInputError: another version of the program gave the answer.
        """
        # What the answer leaves out, such as the schedule, is computed with the calibrations that it was priced with, which
        # travelled with the job: they are what the request meant, whatever the tenant has stored since.
        kept = json.loads(self.request)["calibrations"]
        calibrations = {name: document_of(content) for name, content in kept.items()}
        return build_report(self.whole_response(), address=self.address, calibrations=calibrations)

    def links(self) -> tuple[Link, ...]:
        """What the pages of the plan link to beside those of the service."""
        return (
            *SITE,
            {"href": f"/?from={self.plan_id}", "label": "Change this request"},
            {"href": f"{self.address}/why-not", "label": "Why not mine?"},
            {"href": f"{self.address}/response.json", "label": "As JSON"},
        )


def whole_report(_calibrations: CalibrationSource, stored: StoredAnswer) -> Iterator[str]:
    """The page of a whole report.

    Raises (as do all others here):
        InvalidInputError: another version of the program gave the answer.
    """
    yield report_page(stored.report(), assets=ASSETS, home=HOME, site=stored.links(), notice=stored.notice)


def ranked_page(_calibrations: CalibrationSource, stored: StoredAnswer, rank: int) -> Iterator[str]:
    """The page of one ranked plan.

    Raises:
        NotFoundError: there is no such rank.
    """
    report = _listing(stored, rank)
    yield plan_page(report, rank, assets=ASSETS, home=HOME, site=stored.links(), notice=stored.notice)


def comparison(_calibrations: CalibrationSource, stored: StoredAnswer, first: int, second: int) -> Iterator[str]:
    """The page of two ranked plans side by side.

    Raises:
        NotFoundError: there is no such rank.
    """
    report = _listing(stored, first, second)
    section = compare_page(report, first, second)
    yield _parts(stored, report, f"Plans {first} and {second} of {page_title(report)}", sections=(section,))


def why_not_form(_calibrations: CalibrationSource, stored: StoredAnswer) -> Iterator[str]:
    """The form for a strategy of one's own, filled with that of the best plan."""
    report = stored.report()
    yield _why_not(stored, report, report.plans[0].strategy if report.plans else None)


def why_not_answer(
    _calibrations: CalibrationSource, stored: StoredAnswer, filled: Mapping[str, str]
) -> Iterator[tuple[int, str]]:
    """What speaks against the strategy that was filled in, or for it: the status and the page."""
    report = stored.report()
    try:
        answer = why_not(report.response, posted_strategy(filled), extra=report.calibrations)
    except MeshwrightError as error:
        told = Markup(fragment("refusal", error=error))  # noqa: S704 - rendered with autoescape
        yield status_of(error), _why_not(stored, report, filled, told)
    else:
        yield 200, _why_not(stored, report, filled, answer_markup(answer, report.response))


def trace(_calibrations: CalibrationSource, stored: StoredAnswer, rank: int) -> Iterator[bytes]:
    """A plan's step as a Chrome trace.

    Raises:
        NotFoundError: there is no such rank.
    """
    report = _listing(stored, rank)
    yield chrome_trace(report.plan(rank), extra=report.calibrations)


def memory(_calibrations: CalibrationSource, stored: StoredAnswer, rank: int) -> Iterator[bytes]:
    """The memory of a plan's fullest stage over the step, for pytorch.org/memory_viz.

    Raises:
        NotFoundError: there is no such rank.
    """
    report = _listing(stored, rank)
    yield memory_snapshot(report.plan(rank), extra=report.calibrations)


def whole_response(_calibrations: CalibrationSource, stored: StoredAnswer) -> Iterator[bytes]:
    """The whole answer, as `meshwright report` and `meshwright export` read it."""
    yield json.dumps(stored.whole_response(), ensure_ascii=False, separators=(",", ":")).encode()


def tuning_report(_calibrations: CalibrationSource, document: str, address: str, notice: str) -> Iterator[str]:
    """The page of a tuning that has ended, from its document as JSON.

    Raises:
        InvalidInputError: a release wrote it that says other things than this one reads.
    """
    site = (*SITE, {"href": f"{address}/tuning.json", "label": "As JSON"})
    yield tuning_page(json.loads(document), assets=ASSETS, home=HOME, site=site, notice=notice)


def _listing(stored: StoredAnswer, *ranks: int) -> Report:
    report = stored.report()
    listed = [view.rank for view in report.plans]
    for rank in ranks:
        if rank not in listed:
            raise NotFoundError(f"this answer has no plan {rank}", hint=f"It has {len(listed)} plans.")
    return report


def _why_not(stored: StoredAnswer, report: Report, filled: Mapping[str, Any] | None, told: Markup = _NOTHING) -> str:
    content = form_markup(f"{stored.address}/why-not", filled) + told
    return _parts(stored, report, f"Why not mine? {page_title(report)}", content=content)


def _parts(
    stored: StoredAnswer, report: Report, title: str, *, sections: tuple[Any, ...] = (), content: Markup = _NOTHING
) -> str:
    wanted = [f"{ASSETS}/{name}" for section in sections for name in section.scripts]
    return page_text(
        "parts_of_plan",
        title=title,
        scripts=(*REPORT_SCRIPTS, *wanted),
        site=stored.links(),
        address=stored.address,
        job=job_line(report),
        sections=sections,
        content=content,
    )
