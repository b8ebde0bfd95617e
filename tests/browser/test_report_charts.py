"""The charts of a report in a browser, under the policies of the file and of the service: what they add, and what stays without."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect

from analysed_report import REQUEST, analysed_report
from app.report.pages import report_file
from planner.one_plan.pair import calibrations_of, pair

MakePage = Callable[..., Page]
CHARTS = 5
"""One of any two plans, one of the front, three of variants."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "plan.html"
    path.write_text(report_file(analysed_report()), "utf-8")
    return path


def drawn(page: Page) -> None:
    """Brings every chart into view and waits until it is drawn."""
    for chart in page.locator("[data-chart]").all():
        chart.evaluate("each => each.scrollIntoView({block: 'center'})")
        expect(chart.locator(".canvas svg").first).to_be_visible()
    expect(page.locator(".chart.drawn")).to_have_count(CHARTS)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_charts_take_the_place_of_figures(
    file: Path,
    new_page: MakePage,
    overflow: Callable[[Page], int],
    axe: Callable[..., None],
    width: int,
    dark: bool,
) -> None:
    page = new_page(width=width, dark=dark)
    page.goto(file.as_uri())
    drawn(page)
    expect(page.locator(".chart > svg.figure").first).to_be_hidden()
    assert overflow(page) == 0
    # Tables and pairs that are folded at first are looked at as well.
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert overflow(page) == 0
    for name in ("compare", "pareto", "what_if"):
        axe(page, within=f"#{name}")


@pytest.fixture(scope="module")
def served(live_address: str) -> str:
    """Address of the same report on a service."""
    plan_id = httpx2.post(f"{live_address}/v1/plans", json=REQUEST, timeout=60).json()["id"]
    end_at = time.monotonic() + 60
    while httpx2.get(f"{live_address}/v1/plans/{plan_id}").json()["status"] != "succeeded":
        assert time.monotonic() < end_at
        time.sleep(0.1)
    return f"{live_address}/plans/{plan_id}"


def test_a_served_page_draws_them_under_its_policy(served: str, page: Page) -> None:
    """Styles of attributes and of inserted elements are refused there; the console would tell of each."""
    page.goto(served)
    drawn(page)
    # The service's own form chooses the plans, and no second one is made.
    expect(page.locator("form.choice")).to_have_count(1)
    page.locator("form.choice select[name=b]").select_option("4")
    expect(page.locator("#compare [data-chart] > p").first).to_contain_text("Plan 4 takes")


@pytest.mark.parametrize("javascript", [True, False])
def test_the_form_of_a_served_page_leads_to_any_two_plans(
    served: str, new_page: MakePage, axe: Callable[..., None], overflow: Callable[[Page], int], javascript: bool
) -> None:
    page = new_page(width=390, javascript=javascript)
    page.goto(served)
    page.locator("form.choice select[name=a]").select_option("5")
    page.locator("form.choice select[name=b]").select_option("2")
    page.locator("form.choice button").click()
    page.wait_for_url(f"{served}/compare?a=5&b=2")
    expect(page.locator("h2").first).to_have_text("Plans 5 and 2 side by side")
    expect(page.locator("#comparison select[name=a]")).to_have_value("5")
    expect(page.locator("#comparison table.apart")).to_have_count(2)
    if javascript:
        assert overflow(page) == 0
        axe(page)


def test_any_two_plans_are_compared(file: Path, page: Page) -> None:
    page.goto(file.as_uri())
    drawn(page)
    page.locator("form.choice select[name=a]").select_option("2")
    page.locator("form.choice select[name=b]").select_option("5")
    report = analysed_report()
    views = [{**view.plan, "evaluation": view.evaluation} for view in (report.plan(2), report.plan(5))]
    expected = pair(*views, calibrations=calibrations_of(report.request))
    verdict = page.locator("#compare [data-chart] > p").first
    expect(verdict).to_contain_text(f"Plan 5 takes {expected['difference_s']:+.4f} s")
    expect(verdict).to_contain_text("too close to call" if expected["tied"] else "told apart")
    largest = max(expected["time_s"].values(), key=lambda both: abs(both[1] - both[0]))
    expect(page.locator("#compare .canvas svg").first).to_contain_text(f"{largest[1] - largest[0]:+.4f}")


def test_keys_go_from_plan_to_plan_and_open_one(file: Path, page: Page) -> None:
    page.goto(file.as_uri())
    drawn(page)
    canvas = page.locator("#pareto .canvas")
    canvas.focus()
    canvas.press("ArrowRight")
    expect(page.locator("#pareto [aria-live]")).to_contain_text("Plan 1: ")
    expect(canvas.locator("svg")).to_contain_text("GPU hours")  # the tooltip
    canvas.press("Enter")
    assert page.url.endswith("#plan-1")


def test_a_press_on_a_point_opens_it(file: Path, page: Page) -> None:
    page.goto(file.as_uri())
    drawn(page)
    points = page.locator("#pareto .canvas svg path[d^='M1 0A1 1']")
    assert points.count() > 20
    # In the middle of the front, where no point is a listed plan.
    points.nth(points.count() // 2).click(force=True)
    page.wait_for_url("**#front-*")
    expect(page.locator("tr:target")).to_be_visible()


def test_a_variant_without_a_plan_says_why(file: Path, page: Page) -> None:
    page.goto(file.as_uri())
    drawn(page)
    lengths = page.locator("#what_if .chart").last
    lengths.locator(".canvas").focus()
    lengths.locator(".canvas").press("ArrowLeft")
    lengths.locator(".canvas").press("ArrowLeft")
    expect(lengths.locator("[aria-live]")).to_contain_text("8,192: no plan; ")


def test_a_comparison_is_printed_as_tables(served: str, page: Page) -> None:
    page.goto(f"{served}/compare?a=1&b=4")
    page.emulate_media(media="print")
    expect(page.locator("#comparison table.apart").first).to_be_visible()
    expect(page.locator("form.choice")).to_be_hidden()


def test_without_scripts_the_figures_stand(file: Path, new_page: MakePage) -> None:
    plain = new_page(javascript=False)
    plain.goto(file.as_uri())
    expect(plain.locator("#pareto svg.figure")).to_be_visible()
    expect(plain.locator("#what_if svg.figure")).to_have_count(3)
    expect(plain.locator(".canvas")).to_have_count(0)
