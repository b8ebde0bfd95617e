"""The timeline, each stage's memory, the time and the table are found in a report's file by their data, which is the response's."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from app.report.build import build_report
from app.report.pages import report_file
from app.report.report import Report
from app.report.sections.memory import memory
from cost_models.terms import MEMORY_NAMES
from example_plans import example_plan
from planner.plan import plan

REQUESTS = Path(__file__).resolve().parents[4] / "examples" / "requests"
FITTING = ("llama-3.1-70b", "mixtral-8x7b", "llama-3.1-70b-two-pools")
JOBS = (*FITTING, "too-small")
ALL_BYTES, PLAIN_BYTES = 1_000_000, 250_000
"""Largest file, and largest file without interaction."""


class Element:
    """One element of the page, with its attributes and what it holds."""

    def __init__(self, tag: str, given: dict[str, str]) -> None:
        self.tag, self.given, self.inside = tag, given, []

    def all(self, **wanted: str | None) -> list[Element]:
        """Elements inside that have these attributes, underscores for hyphens; None stands for any value."""
        names = {name.rstrip("_").replace("_", "-"): value for name, value in wanted.items()}
        found = []
        for each in self.inside:
            if all(name in each.given and value in (None, each.given[name]) for name, value in names.items()):
                found.append(each)
            found += each.all(**wanted)
        return found

    def one(self, **wanted: str | None) -> Element:
        (found,) = self.all(**wanted)
        return found


class Tree(HTMLParser):
    """The page as elements. Every element of the pages is closed, but for those that never are."""

    VOID = frozenset({"meta", "link", "br", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(self.open[-1].inside[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag


@cache
def _report(name: str) -> Report:
    return build_report(example_plan(name))


@cache
def _page(name: str) -> Element:
    return Tree(report_file(_report(name))).root


def _of_plan_1(name: str, section: str) -> tuple[Element, dict[str, Any]]:
    evaluation: dict[str, Any] = _report(name).response["plans"][0]["evaluation"]
    return _page(name).one(id=f"{section}-1"), evaluation


@pytest.mark.parametrize("name", JOBS)
def test_files_are_small(name: str) -> None:
    assert len(report_file(_report(name)).encode()) <= ALL_BYTES
    assert len(report_file(_report(name), scripts=False).encode()) <= PLAIN_BYTES


@pytest.mark.parametrize("name", FITTING)
def test_the_table_holds_every_plan_that_is_no_near_copy(name: str) -> None:
    report = _report(name)
    table = _page(name).one(id="ranking")
    leaders = [each for each in report.response["plans"] if each["folded_under"] is None]
    rows = table.all(data_plan=None)
    assert [int(row.given["data-plan"]) for row in rows] == [each["rank"] for each in leaders]
    for row, ranked in zip(rows, leaders, strict=True):
        evaluation = ranked["evaluation"]
        drawn = row.one(data_low=None)
        ends = [float(drawn.given[f"data-{end}"]) for end in ("low", "value", "high")]
        low, high = evaluation["step_time_range_s"]
        assert ends == pytest.approx([low, evaluation["step_time_s"], high], rel=1e-5)
        # The bar is drawn where its numbers say, on an axis that all rows share: equal seconds are equally long.
        bar = row.one(class_="kind-range").given
        row_s = float(bar["width"].rstrip("%")) / (high - low)
        assert row_s == pytest.approx(_scale(rows[0], leaders[0]), rel=2e-3)
    copies = [each["rank"] for each in report.response["plans"] if each["folded_under"] is not None]
    assert [int(row.given["data-copy"]) for row in table.all(data_copy=None)] == copies


def _scale(row: Element, ranked: dict[str, Any]) -> float:
    low, high = ranked["evaluation"]["step_time_range_s"]
    return float(row.one(class_="kind-range").given["width"].rstrip("%")) / (high - low)


@pytest.mark.parametrize("name", FITTING)
def test_each_stages_memory_is_drawn_by_kind(name: str) -> None:
    section, evaluation = _of_plan_1(name, "memory")
    memory = evaluation["memory"]
    bars = {int(bar.given["data-stage"]): bar for bar in section.all(data_stage=None)}
    # Stages that hold the same as the one before share its bar.
    shown = None
    for stage in memory["stages"]:
        shown = bars.get(stage["stage"], shown)
        assert shown is not None
        drawn = {part.given["data-kind"]: float(part.given["data-value"]) for part in shown.all(data_kind=None)}
        expected = {kind: size for kind, size in stage["breakdown_bytes"].items() if size}
        assert {kind: drawn[kind] for kind in drawn if kind in MEMORY_NAMES} == pytest.approx(expected, rel=1e-5)
        limits = {mark.given["data-mark"]: float(mark.given["data-value"]) for mark in shown.all(data_mark=None)}
        capacity = stage.get("capacity_bytes") or memory["capacity_bytes"]
        assert limits == pytest.approx({"limit": capacity, "headroom": 0.97 * capacity}, rel=1e-5)


def test_the_fullest_card_is_told_whole() -> None:
    section, evaluation = _of_plan_1("llama-3.1-70b", "memory")
    memory = evaluation["memory"]
    bar = section.one(data_stage="0")
    sizes = [float(part.given["data-value"]) for part in bar.all(data_kind=None)]
    assert sum(sizes) == pytest.approx(memory["peak_device_bytes"], rel=1e-5)
    whisker = bar.one(data_low=None).given
    ends = [float(whisker["data-low"]), float(whisker["data-high"])]
    assert ends == pytest.approx(memory["peak_device_range_bytes"], rel=1e-5)
    # The parts lie end to end, on the scale of the limit that they are compared with.
    scale = float(bar.one(data_mark="limit").given["x1"].rstrip("%")) / memory["capacity_bytes"]
    at = 0.0
    for part, size in zip(bar.all(data_kind=None), sizes, strict=True):
        assert float(part.given["x"].rstrip("%")) == pytest.approx(at * scale, abs=0.02)
        assert float(part.given["width"].rstrip("%")) == pytest.approx(size * scale, abs=0.02)
        at += size


@pytest.mark.parametrize("name", FITTING)
def test_all_stages_are_told_by_one_measure(name: str) -> None:
    section, evaluation = _of_plan_1(name, "memory")
    report = _report(name)
    found = memory(report, report.plans[0])
    assert found is not None
    values = re.findall(r'<div class="value"><b>([\d.]+)</b>(.*?)</div>', found.body)
    assert len(values) == len(section.all(data_stage=None))
    by_card = {" of " in told for _, told in values}
    held = evaluation["memory"]
    first = held["stages"][0]
    # The card is known of every stage on pools, and where all stages are the fullest one's equals.
    known = all(s.get("peak_device_bytes") or s["breakdown_bytes"] == first["breakdown_bytes"] for s in held["stages"])
    assert by_card == {known}
    size = first.get("peak_device_bytes", held["peak_device_bytes"]) if known else first["peak_allocated_bytes"]
    assert values[0][0] == f"{size / 2**30:.1f}"
    cards = re.findall(r"on the card: ([\d.]+)", found.body)
    assert cards == ([] if known else [f"{held['peak_device_bytes'] / 2**30:.1f}"])


def test_options_of_commands_are_code_and_stay_whole() -> None:
    text = report_file(_report("llama-3.1-70b"), scripts=False)
    assert '<code>meshwright profile run <span class="option">--out FILE</span></code>' in text
    assert '<code class="option">--calibration FILE</code>' in text
    assert ".option { white-space: nowrap; }" in text


@pytest.mark.parametrize("name", FITTING)
def test_the_time_is_told_by_term_with_its_origin(name: str) -> None:
    section, evaluation = _of_plan_1(name, "time")
    stack = section.one(data_step=None)
    parts = {part.given["data-kind"]: part.given for part in stack.all(data_kind=None)}
    taken = {term: seconds for term, seconds in evaluation["time_breakdown_s"].items() if seconds}
    assert {term: float(part["data-value"]) for term, part in parts.items()} == pytest.approx(taken, rel=1e-5)
    tiers = evaluation["provenance"]["terms"]
    assert {term: part["data-tier"] for term, part in parts.items()} == {term: tiers[term] for term in taken}
    order = [row.given["data-term"] for row in section.all(data_term=None)]
    assert order == sorted(taken, key=lambda term: -taken[term])


@pytest.mark.parametrize("name", FITTING)
def test_the_trust_strip_adds_up_to_the_step(name: str) -> None:
    evaluation = _report(name).response["plans"][0]["evaluation"]
    shares: dict[str, float] = {}
    for term, tier in evaluation["provenance"]["terms"].items():
        share = evaluation["time_breakdown_s"][term] / evaluation["step_time_s"]
        shares[tier] = shares.get(tier, 0.0) + share
    drawn = {
        part.given["data-tier"]: float(part.given["data-value"])
        for part in _page(name).one(id="trust").all(data_kind="tier")
    }
    assert drawn == pytest.approx({tier: share for tier, share in shares.items() if share}, rel=1e-5)
    assert sum(drawn.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", FITTING)
def test_the_timeline_has_every_stage_at_work(name: str) -> None:
    section, _ = _of_plan_1(name, "timeline")
    stages = _report(name).response["plans"][0]["strategy"]["pp"]
    panels = section.all(data_panel=None)
    assert panels
    for stage in range(stages):
        kinds = {
            path.given["data-kind"]
            for panel in panels
            for group in panel.all(data_stage=str(stage))
            for path in group.all(data_kind=None)
        }
        assert {"forward", "backward"} <= kinds


def test_where_nothing_fits_the_page_says_what_comes_closest() -> None:
    report = _report("too-small")
    page = _page("too-small")
    nearest = report.response["nearest_infeasible"]
    candidates = page.one(id="nearest").all(data_candidate=None)
    assert len(candidates) == len(nearest) > 0
    for candidate in candidates:
        bar = candidate.one(data_stage=None)
        limit = float(bar.one(data_mark="limit").given["data-value"])
        assert sum(float(part.given["data-value"]) for part in bar.all(data_kind=None)) > limit
    text = re.sub(r"<[^>]+>", " ", report_file(report))
    for each in nearest:
        assert each["smallest_change"] in text
    assert "No plan fits." in text
    assert not page.all(id="plan-1")


@pytest.mark.parametrize("name", JOBS)
def test_rejected_strategies_are_counted_by_reason(name: str) -> None:
    response = _report(name).response
    rows = _page(name).one(id="rejected").all(data_count=None)
    counted = {row.given["data-code"]: int(row.given["data-count"]) for row in rows if row.given["data-code"]}
    assert counted == response["rejected"]


@pytest.mark.parametrize(
    ("change", "headline"),
    [
        ({"targets": {"min_tokens_per_s": 5e6}}, "No plan is as fast as the targets ask."),
        ({"constraints": {"fixed": {"tp": 5}}}, "No strategy can run as asked."),
    ],
)
def test_the_headline_blames_memory_only_where_memory_is_the_reason(change: dict[str, Any], headline: str) -> None:
    request = json.loads((REQUESTS / "llama-3.1-70b.json").read_text("utf-8"))
    text = report_file(build_report(plan(request | change)))
    assert headline in text
    assert "No plan fits." not in text
