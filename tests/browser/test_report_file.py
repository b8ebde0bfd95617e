"""A report opened from disk: complete without scripts, readable on narrow and dark screens, by keyboard and on one sheet."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.report.build import build_report
from app.report.pages import report_file
from example_plans import example_plan

MakePage = Callable[..., Page]
REQUESTS = Path(__file__).resolve().parents[2] / "examples" / "requests"
JOBS = {
    "a dense model": "llama-3.1-70b",
    "an expert model": "mixtral-8x7b",
    "two pools": "llama-3.1-70b-two-pools",
    "nothing fits": "too-small",
}


@cache
def _text(job: str) -> str:
    return report_file(build_report(example_plan(JOBS[job])))


@pytest.fixture(params=JOBS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "plan.html"
    path.write_text(_text(request.param), "utf-8")
    return path


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_is_readable_and_fits_its_window(
    file: Path,
    new_page: MakePage,
    overflow: Callable[[Page], int],
    axe: Callable[..., None],
    width: int,
    dark: bool,
) -> None:
    page = new_page(width=width, dark=dark)
    page.goto(file.as_uri())
    assert overflow(page) == 0
    axe(page)


def test_it_tells_the_same_without_scripts(file: Path, new_page: MakePage) -> None:
    """Scripts may add charts and buttons; whatever stands in the file is there without them."""
    page = new_page(javascript=False)
    page.goto(file.as_uri())
    expect(page.locator("h1")).to_be_visible()
    for name in ("verdict", "rejected"):
        expect(page.locator(f"#{name}")).to_be_visible()
    if page.locator("#plan-1").count():
        for name in ("#trust .bar", "#ranking tbody tr", "#memory-1 [data-stage]", "#time-1 [data-term]"):
            expect(page.locator(name).first).to_be_visible()
        # A closed plan opens by itself, since it is an element of the browser's.
        last = page.locator("details.plan").last
        last.locator("> summary").click()
        expect(last.locator(".part").first).to_be_visible()


def test_it_prints_on_one_sheet(file: Path, new_page: MakePage, printed_pages: Callable[[Page], int]) -> None:
    page = new_page(dark=True)
    page.goto(file.as_uri())
    page.emulate_media(media="print")
    expect(page.locator(".lead")).to_be_visible()
    if page.locator("#plan-1").count():
        for name in ("#trust", "#ranking", "#memory-1", "#time-1"):
            expect(page.locator(name)).to_be_visible()
        expect(page.locator("#launch-1")).to_be_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media=None)
    assert printed_pages(page) == 1


def test_the_ranking_is_sorted_by_key_and_says_so(new_page: MakePage, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    path.write_text(_text("an expert model"), "utf-8")
    page = new_page()
    page.goto(path.as_uri())
    table = page.locator("#ranking table.ranking")
    heading = table.locator("thead th", has_text="GiB/GPU")

    def column() -> list[float]:
        place = heading.evaluate("each => each.cellIndex")
        return [
            float(text.split()[0]) for text in table.locator(f"tbody tr > :nth-child({place + 1})").all_inner_texts()
        ]

    before = column()
    assert before != sorted(before)
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert column() == sorted(before)
    assert heading.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert column() == sorted(before, reverse=True)
    assert heading.get_attribute("aria-sort") == "descending"
    table.locator("thead th", has_text="plan").first.locator("button").click()
    assert column() == before
    assert heading.get_attribute("aria-sort") is None


def test_a_keyboard_reaches_the_content_first(new_page: MakePage, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    path.write_text(_text("a dense model"), "utf-8")
    page = new_page()
    page.goto(path.as_uri())
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_boxes_fade_at_their_edge_only_where_more_follows(new_page: MakePage, tmp_path: Path) -> None:
    """At 390 pixels the ranking's memory is cut off; pushed to its end, or in a wide window, nothing is."""
    path = tmp_path / "plan.html"
    path.write_text(_text("a dense model"), "utf-8")
    fades = "each => getComputedStyle(each).maskImage !== 'none'"
    narrow, wide = new_page(width=390), new_page()
    for page in (narrow, wide):
        page.goto(path.as_uri())
    box = narrow.locator("#ranking .scroll").first
    assert box.evaluate("each => each.scrollWidth > each.clientWidth")
    assert box.evaluate(fades)
    box.evaluate("each => { each.scrollLeft = each.scrollWidth }")
    narrow.wait_for_function("getComputedStyle(document.querySelector('#ranking .scroll')).maskImage === 'none'")
    assert not wide.locator("#ranking .scroll").first.evaluate(fades)
    # Rows of the groups of ranks take at most four lines, however narrow the window.
    rows = narrow.locator("#mesh-1 .mesh-groups tbody tr")
    assert max(row.evaluate("each => each.offsetHeight") for row in rows.all()) <= 100
    # A number stays with its unit.
    assert narrow.locator("#verdict .key").evaluate("each => /to [0-9.]+\\u00a0s/.test(each.textContent)")
