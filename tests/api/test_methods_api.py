"""HEAD, OPTIONS and `Allow` on every path, whichever routes share it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from app.service.intake.examples import EXAMPLE_PLAN_ID, example_calibration
from app.service.jobs.runner import Kind
from app.settings import Settings
from live_service import listening

VALUES = {
    "plan_id": EXAMPLE_PLAN_ID, "rank": "1", "framework": "megatron", "calibration_id": example_calibration().id,
}  # fmt: skip
PAGES = [
    "/",
    "/docs",
    "/plans",
    "/calibrations",
    "/key",
    f"/plans/{EXAMPLE_PLAN_ID}",
    "/static/pages.css",
    "/openapi.json",
]


@pytest.fixture(scope="module")
def paths(client: TestClient) -> dict[str, set[str]]:
    """Methods of every path of the OpenAPI document, with the ids of objects that exist or "none"."""
    end_at = time.monotonic() + 30.0
    while client.get(f"/v1/plans/{EXAMPLE_PLAN_ID}").json()["status"] != "succeeded":
        assert time.monotonic() < end_at
        time.sleep(0.05)
    found: dict[str, set[str]] = {}
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        filled = path
        for name in names:
            filled = filled.replace(f"{{{name}}}", VALUES.get(name, "none"))
        found[filled] = {method.upper() for method in operations}
    return found


def heads(answer: httpx2.Response) -> dict[str, str]:
    """Headers that do not change from call to call."""
    left_out = {"x-request-id", "content-length", "transfer-encoding"}
    return {name: value for name, value in answer.headers.items() if name not in left_out}


def test_head_answers_wherever_get_does(client: TestClient, paths: dict[str, set[str]]) -> None:
    gettable = [path for path, methods in paths.items() if "GET" in methods]
    assert len(gettable) >= 13
    for path in [*gettable, *PAGES, "/nothing", "/v1/plans?limit=0"]:
        whole, head = client.get(path), client.head(path)
        assert head.status_code == whole.status_code, path
        assert head.content == b"", path
        assert heads(head) == heads(whole), path


def test_what_only_takes_posts_has_no_head(client: TestClient) -> None:
    answer = client.head("/v1/evaluate")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST, OPTIONS")


def test_options_and_refusals_name_every_method_of_a_path(client: TestClient, paths: dict[str, set[str]]) -> None:
    for path, methods in paths.items():
        expected = {*methods, *({"HEAD"} if "GET" in methods else ()), "OPTIONS"}
        told = client.options(path)
        assert told.status_code == 204, path
        assert set(told.headers["allow"].split(", ")) == expected, path
        refused = client.request("PATCH", path)
        assert (refused.status_code, refused.json()["code"]) == (405, "method-not-allowed"), path
        assert refused.headers["allow"] == told.headers["allow"], path


def test_files_and_pages_name_theirs_too(client: TestClient) -> None:
    assert client.post("/static/pages.css").headers["allow"] == "GET, HEAD, OPTIONS"
    assert client.options("/key").headers["allow"] == "GET, HEAD, POST, OPTIONS"
    assert client.options("/nothing").status_code == 404


@pytest.fixture
def running(slow_settings: Settings, slow_kinds: dict[str, Kind], asked: dict[str, Any]) -> Iterator[str]:
    """Address of the events of a job that runs for a minute."""
    with listening(slow_settings, kinds=slow_kinds) as address:
        plan = httpx2.post(f"{address}/v1/plans", json={**asked, "seed": 600, "wait_s": 0}).json()
        yield f"{address}/v1/plans/{plan['id']}/events"
        httpx2.delete(f"{address}/v1/plans/{plan['id']}")


def test_the_head_of_a_stream_does_not_wait_for_its_end(running: str) -> None:
    with httpx2.Client() as client:
        for _ in range(3):
            head = client.head(running, timeout=60)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"].startswith("text/event-stream")
        star = client.options(running.rpartition("/v1/")[0], extensions={"target": b"*"}, timeout=60)
    assert star.status_code == 204
    assert "DELETE" in star.headers["allow"]
