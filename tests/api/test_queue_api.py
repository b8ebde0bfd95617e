"""What a queued plan says of its turn: its priority, its place, and when it is expected to start."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient


def test_a_queued_plan_tells_its_place_and_a_higher_priority_goes_first(
    slow_client: TestClient, asked: dict[str, Any]
) -> None:
    def post(top_k: int, seed: int, query: str = "", wait_s: float = 0.0) -> dict[str, Any]:
        body = {**asked, "top_k": top_k, "seed": seed, "wait_s": wait_s}
        found: dict[str, Any] = slow_client.post(f"/v1/plans{query}", json=body).json()
        return found

    def told(plan: dict[str, Any]) -> tuple[Any, Any]:
        now = slow_client.get(f"/v1/plans/{plan['id']}").json()
        return now["priority"], now["position"]

    finished = post(5, 2, wait_s=20.0)
    assert finished["status"] == "succeeded"
    running = post(1, 300)
    while slow_client.get(f"/v1/plans/{running['id']}").json()["status"] == "queued":
        time.sleep(0.01)
    assert told(running) == (0, None)
    first, second = post(2, 300), post(3, 300)
    assert (first["priority"], first["position"], second["position"]) == (0, 1, 2)
    # One worker, and the only job that has ended took a few tenths of a second, for each of two starts.
    expected = datetime.fromisoformat(second["estimated_start_at"]) - datetime.now(UTC)
    assert timedelta(0) < expected < timedelta(seconds=30)
    # The same request is the same plan, whatever its priority; a higher one moves it forward, a lower one is ignored.
    assert post(3, 300, "?priority=7")["id"] == second["id"]
    assert (told(first), told(second)) == ((0, 2), (7, 1))
    assert post(3, 300, "?priority=-7")["priority"] == 7
    page = slow_client.get(f"/plans/{first['id']}").text
    assert "Waiting for a free worker: 1 search starts before this one" in page
    assert "Waiting for a free worker: this search is next" in slow_client.get(f"/plans/{second['id']}").text
    for plan in (first, second, running):
        slow_client.delete(f"/v1/plans/{plan['id']}")


@pytest.mark.parametrize(("priority", "status"), [("-101", 422), ("-100", 201), ("100", 201), ("101", 422), ("x", 422)])
def test_priorities_go_from_minus_100_to_100(
    client: TestClient, asked: dict[str, Any], priority: str, status: int
) -> None:
    answer = client.post(f"/v1/plans?priority={priority}", json=asked)
    assert answer.status_code == status
    if status == 422:
        assert answer.json()["errors"][0]["pointer"] == "/query/priority"
