"""Pages in the system's Chromium, which can reach this machine only.

A test asks for `page` (1,280 pixels, light, with JavaScript) or makes pages of another kind with `new_page(width=390)`,
`new_page(dark=True)`, `new_page(javascript=False)`, and opens what it wants: `page.goto(f"{live_address}/docs")`,
`page.goto(path.as_uri())`. When the test ends, every page must have stayed free of console errors, of script errors and of
requests to another host. `axe(page)` adds the findings of axe-core, `printed_pages(page)` counts the pages on paper.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from app.settings import Settings
from live_service import listening
from page_watch import Watch

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]  # fmt: skip
AXE = Path(__file__).parent / "axe" / "axe.min.js"
MakePage = Callable[..., Page]


# Playwright's event loop runs in the thread of the tests until it is stopped, and `asyncio.run` refuses to work beside it. It
# therefore lives as long as the tests of this folder, not as long as the session.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    if not CHROMIUM:
        pytest.skip("Chromium is not installed")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="package")
def live_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of one service with its default settings, for all tests of this folder."""
    with listening(Settings(data_dir=tmp_path_factory.mktemp("data"), pool_size=1, log_level="error")) as address:
        yield address


@pytest.fixture
def new_page(browser: Browser) -> Iterator[MakePage]:
    """Makes pages and fails the test for what they did: `new_page(width=1280, dark=False, javascript=True, allowed=())`.

    `allowed` are regular expressions of console errors that the test provokes: Chromium writes one for every refused request,
    such as "the server responded with a status of 422".
    """
    made: list[tuple[BrowserContext, Watch]] = []

    def make(*, width: int = 1280, dark: bool = False, javascript: bool = True, allowed: tuple[str, ...] = ()) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=javascript,
        )
        # Generous on a machine that runs other tests beside; a page that never gets there still fails long before pytest's limit.
        context.set_default_timeout(60_000)
        watch = Watch(allowed)
        context.on("page", watch.follow)
        made.append((context, watch))
        return context.new_page()

    yield make
    for context, _ in made:
        context.close()
    assert [offence for _, watch in made for offence in watch.offences] == []


@pytest.fixture
def page(new_page: MakePage) -> Page:
    """A page of 1,280 pixels, light, with JavaScript."""
    return new_page()


@pytest.fixture(scope="session")
def axe() -> Callable[..., None]:
    """Fails for what axe-core finds serious or critical: `axe(page, within="main")`. The page needs JavaScript."""
    source = AXE.read_text()

    def check(page: Page, *, within: str | None = None, except_for: tuple[str, ...] = ()) -> None:
        page.evaluate(source)
        context = {"include": within or "html", "exclude": list(except_for)}
        found = page.evaluate("context => axe.run(context)", context)["violations"]
        serious = [
            f"{violation['impact']} {violation['id']}: {violation['help']}: {node['html'][:200]}"
            for violation in found
            if violation["impact"] in {"serious", "critical"}
            for node in violation["nodes"]
        ]
        assert serious == []

    return check


@pytest.fixture(scope="session")
def printed_pages() -> Callable[[Page], int]:
    """How many A4 pages a page takes on paper."""

    def count(page: Page) -> int:
        return len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4", prefer_css_page_size=True)))

    return count


@pytest.fixture(scope="session")
def overflow() -> Callable[[Page], int]:
    """By how many pixels a page is wider than its window: 0 where nobody has to scroll sideways."""

    def measure(page: Page) -> int:
        return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    return measure


@pytest.fixture
def cells_of_list() -> Callable[[Page], int]:
    """Requires every cell of a list to be seen on a screen of 390 pixels, with its column's name; the number of cells that say something."""

    def measure(page: Page) -> int:
        cells = page.locator(".listed tbody th, .listed tbody td:not(:empty)").all()
        for cell in cells:
            box = cell.bounding_box()
            assert box
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390, cell.inner_text()
        hidden = "region => region.scrollWidth - region.clientWidth"
        regions = page.locator(".scroll").all()
        assert [region.evaluate(hidden) for region in regions] == [0] * len(regions)
        # The column's name stands at each value, since the header is gone.
        labels = page.locator(".listed td[data-label]").evaluate_all(
            "cells => cells.map(cell => getComputedStyle(cell, '::before').content)"
        )
        assert labels
        assert "none" not in labels
        return len(cells)

    return measure
