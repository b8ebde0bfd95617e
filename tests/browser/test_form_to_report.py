"""The service's pages in a browser: a form becomes a report, a refused form says why, keys open them, and everybody can read them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.service.db.engine import build_engine
from app.service.db.keys import create_key
from app.settings import Settings
from live_service import listening

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True, "head_dim": 64,
}  # fmt: skip
PAGES = (
    "/",
    "/plans",
    "/calibrations",
    "/calibrations/h100x4-nvls-off-2026",
    "/key",
    "/plans/plan-example",
    "/plans/plan-example/why-not",
    "/tunings",
    "/tunings/tuning-example",
)


def test_a_form_becomes_a_report(page: Page, live_address: str) -> None:
    page.goto(f"{live_address}/")
    expect(page.locator("#resolved")).to_contain_text("8.03B parameters")
    page.select_option("#model-preset", "llama-3.2-1b")
    expect(page.locator("#resolved")).to_contain_text("1.24B parameters")
    page.fill("#cluster-num_nodes", "1")
    expect(page.locator("#resolved")).to_contain_text("8 GPUs")
    page.click("text=Find the best plans")
    page.wait_for_url("**/plans/plan-*")
    # The progress page loads itself again when the search has ended, at the same address.
    expect(page.locator("h1")).to_have_text("llama-3.2-1b on 8 GPUs", timeout=60_000)
    assert re.search(r"/plans/plan-[0-9a-f]+$", page.url)
    page.click("text=Change this request")
    expect(page.locator("#model-preset")).to_have_value("llama-3.2-1b")
    page.click("header >> text=Plans")
    expect(page.locator("tbody tr").first).to_contain_text("llama-3.2-1b on 1 × dgx-h100")


def test_problems_stand_at_their_fields_while_one_types(page: Page, live_address: str) -> None:
    page.goto(f"{live_address}/")
    length = page.locator("#training-seq_length")
    length.fill("128kk")
    expect(page.locator("#training-seq_length-problem")).to_contain_text("seq_length is '128kk'")
    expect(length).to_have_attribute("aria-invalid", "true")
    expect(length).to_be_focused()
    expect(length).to_have_value("128kk")
    length.fill("128k")
    expect(page.locator("#training-seq_length-problem")).to_be_empty()
    expect(length).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#resolved")).to_contain_text("67,108,864 tokens per step")


def test_a_refused_form_comes_back_whole(new_page: Callable[..., Page], live_address: str) -> None:
    page = new_page(allowed=("422",))
    page.goto(f"{live_address}/")
    page.fill("#training-seq_length", "many")
    page.click("summary:has-text('Objective')")
    page.fill("#targets-deadline_h", "30d")
    page.click("text=Find the best plans")
    refused = page.locator(".refused")
    expect(refused).to_contain_text("seq_length is 'many'")
    expect(page.locator("#training-seq_length")).to_have_value("many")
    expect(page.locator("#targets-deadline_h")).to_have_value("30d")
    expect(page.locator("#targets-deadline_h")).to_be_visible()
    refused.locator("a").first.click()
    expect(page.locator("#training-seq_length")).to_be_in_viewport()


def test_a_config_is_chosen_or_dropped(page: Page, live_address: str, tmp_path: Path) -> None:
    """Llama 3.2 1B has 1.24B parameters (its card)."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    page.goto(f"{live_address}/")
    page.check("text=Its config.json")
    expect(page.locator("#model-preset")).to_be_hidden()
    page.set_input_files("#model-file", file)
    expect(page.locator("#model-document")).to_have_value(json.dumps(CONFIG))
    expect(page.locator("#resolved")).to_contain_text("1.24B parameters")
    page.fill("#model-document", "")
    expect(page.locator("#model-document-problem")).to_contain_text("nothing is written here")
    page.evaluate(
        """text => {
            const data = new DataTransfer();
            data.items.add(new File([text], "config.json", {type: "application/json"}));
            document.getElementById("model-document").dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true}));
        }""",
        json.dumps(CONFIG),
    )
    expect(page.locator("#model-document")).to_have_value(json.dumps(CONFIG))
    expect(page.locator("#model-document-problem")).to_be_empty()


def test_the_form_works_without_scripts(new_page: Callable[..., Page], live_address: str) -> None:
    page = new_page(javascript=False, allowed=("422",))
    page.goto(f"{live_address}/")
    page.check("text=A GPU and nodes")
    expect(page.locator("#cluster-preset")).to_be_hidden()
    page.fill("#cluster-num_nodes", "none")
    page.click("text=Find the best plans")
    expect(page.locator("#cluster-num_nodes-problem")).to_contain_text("num_nodes is 'none'")
    expect(page.locator("#cluster-num_nodes")).to_have_value("none")
    page.fill("#cluster-num_nodes", "1")
    page.click("text=Find the best plans")
    # The page asks again by itself until the report is there.
    expect(page.locator("h1")).to_have_text("llama-3.1-8b on 8 GPUs", timeout=60_000)


def test_a_key_opens_the_pages(new_page: Callable[..., Page], tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, host="0.0.0.0", pool_size=1, log_level="error")
    with listening(settings) as address:
        engine = build_engine(settings.url)
        _, secret = create_key(engine, tenant="alice", name="test")
        engine.dispose()
        page = new_page(allowed=("401",))
        page.goto(f"{address}/plans")
        expect(page.locator("h1")).to_have_text("Unauthorized")
        page.fill("#key", "mw_wrong")
        page.click("text=Use this key")
        expect(page.locator("#key-problem")).to_contain_text("not valid")
        page.fill("#key", secret)
        page.click("text=Use this key")
        # On to the page that asked for it.
        expect(page.locator("h1")).to_have_text("Plans")
        page.goto(f"{address}/")
        page.click("text=Find the best plans")
        expect(page.locator("h1")).to_have_text("llama-3.1-8b on 16 GPUs", timeout=60_000)
        assert page.evaluate("document.cookie") == ""
        # A link on another site, such as a chat, opens what the key opens.
        plan = page.url
        page.goto(f"data:text/html,<a href='{plan}'>look at this plan</a>")
        page.click("text=look at this plan")
        page.wait_for_url(plan)
        expect(page.locator("h1")).to_have_text("llama-3.1-8b on 16 GPUs")
        page.click("header >> text=Key")
        expect(page.locator("main")).to_contain_text("alice")
        page.click("text=Sign out")
        page.goto(f"{address}/plans")
        expect(page.locator("h1")).to_have_text("Unauthorized")


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_pages_can_be_read_by_everybody(
    new_page: Callable[..., Page],
    live_address: str,
    axe: Callable[..., None],
    overflow: Callable[[Page], int],
    path: str,
    width: int,
    dark: bool,
) -> None:
    page = new_page(width=width, dark=dark)
    page.goto(f"{live_address}{path}")
    assert overflow(page) == 0
    for folded in page.locator("main details:not([open]) > summary").all():
        if folded.is_visible():
            folded.click()
    axe(page)
    assert overflow(page) == 0


def test_the_form_is_filled_by_keyboard(page: Page, live_address: str) -> None:
    page.goto(f"{live_address}/")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    # The chosen way of the model is the first stop, then its preset.
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    expect(page.locator("#model-preset")).to_be_focused()
    page.locator("#training-global_batch_size").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/plans/plan-*")


@pytest.mark.parametrize("path", ["/plans", "/calibrations"])
def test_lists_show_every_column_on_a_narrow_screen(
    new_page: Callable[..., Page], live_address: str, path: str, cells_of_list: Callable[[Page], int]
) -> None:
    page = new_page(width=390)
    page.goto(f"{live_address}{path}")
    assert cells_of_list(page) >= 5


def test_choices_of_the_calibration_are_not_cut(page: Page, live_address: str) -> None:
    page.goto(f"{live_address}/")
    width = page.locator("#cluster-calibration").evaluate(
        """select => {
            const style = getComputedStyle(select);
            const pen = document.createElement("canvas").getContext("2d");
            pen.font = style.font;
            const room = select.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - 20;
            return Math.max(...[...select.options].slice(0, 2).map(each => pen.measureText(each.label).width)) - room;
        }"""
    )
    assert width <= 0
