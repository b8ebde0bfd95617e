"""The documentation page in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import httpx2
from playwright.sync_api import Locator, Page, expect

from app.service.api.examples.requests import REQUESTS

Overflow = Callable[[Page], int]


def test_swagger_ui_is_drawn_with_every_route_on_a_narrow_screen_too(
    live_address: str, page: Page, overflow: Overflow
) -> None:
    page.goto(f"{live_address}/docs")
    paths = httpx2.get(f"{live_address}/openapi.json").json()["paths"]
    expect(page.locator(".opblock")).to_have_count(sum(len(methods) for methods in paths.values()))
    drawn = {block.get_attribute("data-path") for block in page.locator(".opblock-summary-path").all()}
    assert drawn == set(paths)
    assert {"/v1/plans/{plan_id}/ranked/{rank}", "/v1/evaluate", "/v1/presets/frameworks", "/readyz"} <= drawn
    page.set_viewport_size({"width": 390, "height": 900})
    expect(page.locator(".opblock").first).to_be_visible()
    assert overflow(page) == 0


def call(page: Page, path: str, method: str) -> Locator:
    """The block of one call, opened."""
    block = page.locator(".opblock", has=page.locator(f'[data-path="{path}"]')).and_(page.locator(f".opblock-{method}"))
    block.locator(".opblock-summary-control").click()
    return block


def test_an_example_is_chosen_from_the_menu_and_sent(live_address: str, page: Page) -> None:
    page.goto(f"{live_address}/docs")
    block = call(page, "/v1/evaluate", "post")
    menu = block.locator(".opblock-section-request-body .examples-select select")
    assert menu.locator("option").all_inner_texts() == [each.title for each in REQUESTS["/v1/evaluate"].values()]
    menu.select_option("wrong_row")
    expect(block.get_by_text("tp 3 does not divide the 128 GPUs.")).to_be_visible()
    expect(block.locator("textarea")).to_have_value(re.compile('"tp": 3'))
    block.get_by_role("button", name="Execute").click()
    expect(block.locator(".live-responses-table .response")).to_contain_text('"verdict": "invalid"')


def test_the_shown_answer_of_a_plan_is_a_real_one_and_the_example_is_executed(live_address: str, page: Page) -> None:
    page.goto(f"{live_address}/docs")
    block = call(page, "/v1/plans", "post")
    shown = block.locator('tr[data-code="201"] .example')
    expect(shown).to_contain_text('"status": "succeeded"')
    text = json.loads(shown.inner_text())
    assert [plan["rank"] for plan in text["plans"]] == [1, 2, 3]
    assert list(text).index("plans") < list(text).index("request")
    block.get_by_role("button", name="Execute").click()
    answered = block.locator(".live-responses-table .response")
    expect(answered).to_contain_text("201")
    expect(answered).to_contain_text('"status": "succeeded"')
