"""The schedule of a report in Chromium: what unfolds, what scrolls, and what its links hand out, from a file under its own policy."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.report.build import build_report
from app.report.pages import report_file
from builders import dense_model, request_of
from planner.plan import plan

MakePage = Callable[..., Page]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of four stages with two chunks each, 32 micro-batches."""
    request = request_of(dense_model(16), seq_length=2048, global_batch_size=64)
    fixed = {"pp": 4, "tp": 1, "vpp": 2, "micro_batch_size": 1}
    response = plan({**request, "constraints": {"fixed": fixed}, "top_k": 1})
    path = tmp_path_factory.mktemp("report") / "plan.html"
    path.write_text(report_file(build_report(response)), "utf-8")
    return path


def downloaded(page: Page, ending: str) -> bytes:
    with page.expect_download() as started:
        page.locator(f"#timeline-1 a[download$='{ending}']").click()
    return gzip.decompress(started.value.path().read_bytes())


def test_a_file_hands_out_the_trace_and_the_snapshot_without_scripts(file: Path, new_page: MakePage) -> None:
    page = new_page(javascript=False)
    page.goto(file.as_uri())
    trace = json.loads(downloaded(page, "trace.json.gz"))
    assert len([event for event in trace["traceEvents"] if event["name"] == "forward"]) == 4 * 2 * 32
    snapshot = pickle.loads(downloaded(page, "memory.pickle.gz"))
    assert snapshot["device_traces"][0]


def test_the_whole_step_unfolds_and_scrolls_in_a_box_of_its_own(
    file: Path, new_page: MakePage, overflow: Callable[[Page], int], axe: Callable[..., None]
) -> None:
    page = new_page(width=390)
    page.goto(file.as_uri())
    whole = page.locator("#timeline-1 svg.figure").last
    expect(whole).to_be_hidden()
    page.locator("#timeline-1 summary", has_text="The whole step").click()
    expect(whole).to_be_visible()
    assert overflow(page) == 0
    # Text of 12 units may shrink by a tenth: a figure that fitted the screen would show it at a third of its size.
    for figure in page.locator("#timeline-1 svg.figure").all():
        assert figure.evaluate("svg => svg.clientWidth / svg.viewBox.baseVal.width") >= 0.9
    axe(page)


def test_bars_are_told_apart_in_grey(file: Path, new_page: MakePage) -> None:
    """Forward, backward and weight gradient are steps of at least 0.15 between black and white, in one direction, in both schemes."""
    lightness = """kind => {
        const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
        path.dataset.kind = kind;
        document.querySelector("#timeline-1 .timeline svg").append(path);
        const [r, g, b] = getComputedStyle(path).stroke.match(/\\d+/g).map(Number);
        return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
    }"""
    for dark in (False, True):
        page = new_page(dark=dark)
        page.goto(file.as_uri())
        greys = [page.evaluate(lightness, kind) for kind in ("forward", "backward", "weight-gradient")]
        steps = [after - before for before, after in pairwise(greys)]
        assert all(step >= 0.15 for step in steps) or all(step <= -0.15 for step in steps)
