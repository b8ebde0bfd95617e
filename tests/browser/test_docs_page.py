"""The documentation page in a browser."""

from __future__ import annotations

import httpx2
from playwright.sync_api import Page, expect


def test_swagger_ui_is_drawn_with_every_route(live_address: str, page: Page) -> None:
    page.goto(f"{live_address}/docs")
    paths = httpx2.get(f"{live_address}/openapi.json").json()["paths"]
    expect(page.locator(".opblock")).to_have_count(sum(len(methods) for methods in paths.values()))
    drawn = {block.get_attribute("data-path") for block in page.locator(".opblock-summary-path").all()}
    assert drawn == set(paths)
    assert {"/v1/plans/{plan_id}/ranked/{rank}", "/v1/evaluate", "/v1/presets/frameworks", "/readyz"} <= drawn


def test_the_example_of_a_plan_is_executed_from_the_page(live_address: str, page: Page) -> None:
    page.goto(f"{live_address}/docs")
    block = page.locator(".opblock", has=page.locator('[data-path="/v1/plans"]')).and_(page.locator(".opblock-post"))
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Execute").click()
    answered = block.locator(".live-responses-table .response")
    expect(answered).to_contain_text("201")
    expect(answered).to_contain_text('"status": "succeeded"')
