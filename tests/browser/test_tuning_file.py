"""The page of a tuning, opened from disk: readable on narrow and dark screens, the same without scripts, and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import tuned
from app.report.tuning.page import tuning_file

MakePage = Callable[..., Page]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tuning.html"
    path.write_text(tuning_file(tuned.studied()), "utf-8")
    return path


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_tuning_is_readable_and_fits_its_window(
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
    # No label of a figure is cut off at the figure's edge.
    beyond = """figure => [...figure.querySelectorAll("text")].filter(text => {
        const [one, all] = [text.getBoundingClientRect(), figure.getBoundingClientRect()];
        return one.left < all.left - 1 || one.right > all.right + 1;
    }).map(text => text.textContent)"""
    assert [page.locator("svg.figure").nth(place).evaluate(beyond) for place in range(3)] == [[], [], []]


def test_a_tuning_tells_the_same_without_scripts_and_on_paper(
    file: Path, new_page: MakePage, printed_pages: Callable[[Page], int]
) -> None:
    page = new_page(javascript=False)
    page.goto(file.as_uri())
    for name in ("verdict", "order", "trials", "terms", "failed", "next", "spent"):
        expect(page.locator(f"#{name}")).to_be_visible()
    page.emulate_media(media="print")
    for name in ("verdict", "order", "trials", "terms", "failed", "next", "spent"):
        expect(page.locator(f"#{name}")).to_be_visible()
    assert page.locator("#trials tbody tr:visible").count() == len(tuned.studied()["trials"])
    page.emulate_media(media=None)
    assert printed_pages(page) <= 2
