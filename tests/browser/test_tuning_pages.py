"""A tuning on its page while its trials run: the page follows by itself, works without scripts, and becomes the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx2
from playwright.sync_api import Page, Route, expect

from stand_in_trial import record_of, step_time_of

NODE = {
    "name": "node-7", "gpu": "H200-SXM-141GB", "gpus_per_node": 2, "num_nodes": 1, "product_version": "0.1.0",
}  # fmt: skip
LONG_MS = 60_000
ASKED: dict[str, Any] = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": "H200-SXM-141GB", "num_nodes": 1, "gpus_per_node": 2, "intra_node": "nvswitch"},
    "training": {"seq_length": 4096, "global_batch_size": 16, "precision": "bf16", "framework": "torchtitan"},
    "top_k": 3,
}


def leased(api: httpx2.Client, agent: str) -> dict[str, Any]:
    """The next trial, once there is one."""
    end_at = time.monotonic() + 60.0
    body = {"instance": "i", "kinds": ["trial"]}
    while not (job := api.post(f"/v1/agents/{agent}/lease", json=body).json()["job"]):
        assert time.monotonic() < end_at
        time.sleep(0.1)
    return dict(job)


def test_a_tunings_page_follows_its_trials_to_the_report(
    new_page: Callable[..., Page], live_address: str, axe: Callable[..., None], overflow: Callable[[Page], int],
    cells_of_list: Callable[[Page], int],
) -> None:  # fmt: skip
    # The first trial loads the library of studies, which takes a while on a busy machine.
    with httpx2.Client(base_url=live_address, timeout=60.0) as api:
        page = new_page(width=390, dark=True)
        follow(api, page, new_page(javascript=False), axe, overflow)
        # The tuning with its trials and fastest step, and an example.
        assert cells_of_list(page) >= 5


def _late(route: Route) -> None:
    time.sleep(1.0)
    route.continue_()


def follow(
    api: httpx2.Client, page: Page, plain: Page, axe: Callable[..., None], overflow: Callable[[Page], int]
) -> None:
    # However late the scripts come, and one after the other: htmx looks for what it connects once, when the page is there.
    page.route("**/hx-sse.min.js", _late)
    agent = api.post("/v1/agents", json=NODE).json()["id"]
    body = {"request": ASKED, "backend": "export", "max_trials": 3}
    tuning = api.post("/v1/tunings", json=body).json()["id"]
    job = leased(api, agent)
    for each in (page, plain):
        each.goto(f"{api.base_url}/tunings/{tuning}")
        expect(each.locator("#progress")).to_contain_text("Trial 1 runs", timeout=LONG_MS)
    axe(page)
    assert overflow(page) == 0
    step_s = step_time_of(job["trial"]["row"]["strategy"])
    sent = {"lease": job["lease"], "outcome": "measured", "trial": record_of(job["trial"], 3.0)}
    assert api.post(f"/v1/agents/{agent}/results", json=sent).status_code == 200
    # With scripts it is told, without them it loads itself again.
    for each in (page, plain):
        expect(each.locator("#progress")).to_contain_text(f"{step_s:.3f} s a step", timeout=LONG_MS)
    leased(api, agent)
    expect(page.locator("#progress")).to_contain_text("Trial 2 runs", timeout=LONG_MS)
    assert overflow(page) == 0
    page.click("text=Cancel the tuning")
    expect(page.locator("h1")).to_have_text("Tuning of llama-3.2-1b on 2 GPUs", timeout=LONG_MS)
    expect(page.locator("#verdict")).to_contain_text("somebody cancelled the tuning", timeout=LONG_MS)
    expect(plain.locator("#verdict")).to_contain_text("somebody cancelled the tuning", timeout=LONG_MS)
    page.click("header >> text=Tunings")
    expect(page.locator("tbody tr").first).to_contain_text("cancelled", timeout=LONG_MS)
