"""What the other tests of this folder rest on: what a page must not do is seen, and nothing leaves the machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from page_watch import Watch

PAGE = '<!doctype html><html lang="en"><title>A page</title><body><main><h1>A page</h1>{}</main>'


@pytest.mark.parametrize(
    ("body", "offence"),
    [
        ('<img alt="elsewhere" src="https://example.org/x.png">', "another host was asked: https://example.org/x.png"),
        ("<script>console.error('broken')</script>", "the console shows: broken"),
        ("<script>undefinedFunction()</script>", "a script failed: undefinedFunction is not defined"),
    ],
)
def test_what_no_page_may_do_is_seen(browser: Browser, tmp_path: Path, body: str, offence: str) -> None:
    (tmp_path / "page.html").write_text(PAGE.format(body))
    watch = Watch()
    with browser.new_context() as context:
        context.on("page", watch.follow)
        opened = context.new_page()
        opened.goto((tmp_path / "page.html").as_uri())
    assert offence in watch.offences


def test_a_provoked_console_error_is_no_offence(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE.format("<script>console.error('status of 422')</script>"))
    watch = Watch(allowed=("422",))
    with browser.new_context() as context:
        context.on("page", watch.follow)
        context.new_page().goto((tmp_path / "page.html").as_uri())
    assert watch.offences == []


def test_axe_finds_an_image_without_a_text(page: Page, tmp_path: Path, axe: Callable[..., None]) -> None:
    (tmp_path / "page.html").write_text(PAGE.format('<img src="data:,">'))
    page.goto((tmp_path / "page.html").as_uri())
    with pytest.raises(AssertionError, match="critical image-alt"):
        axe(page)


def test_wide_and_long_pages_are_measured(
    new_page: Callable[..., Page],
    tmp_path: Path,
    overflow: Callable[[Page], int],
    printed_pages: Callable[[Page], int],
) -> None:
    """A body of 500 pixels is 110 too wide for a window of 390; three forced breaks make four sheets."""
    sheets = '<p style="break-after: page">sheet</p>' * 3 + "<p>last</p>"
    (tmp_path / "page.html").write_text(PAGE.format(f'<div style="width: 500px; margin: 0 -8px">{sheets}</div>'))
    narrow = new_page(width=390)
    narrow.goto((tmp_path / "page.html").as_uri())
    assert overflow(narrow) == 110
    assert printed_pages(narrow) == 4
