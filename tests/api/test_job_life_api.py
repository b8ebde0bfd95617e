"""The life of a job over HTTP: waiting, watching, cancelling, workers that die, services that restart."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.jobs.runner import Kind
from app.service.main import create_app
from app.settings import Settings

FINISHED = {"succeeded", "failed", "cancelled"}


def post(client: TestClient, asked: dict[str, Any], *, tenths: int, wait_s: float = 0.0) -> Any:
    return client.post("/v1/plans", json={**asked, "seed": tenths, "wait_s": wait_s})


def ended(client: TestClient, plan_id: str, *, seconds: float = 60.0) -> dict[str, Any]:
    end_at = time.monotonic() + seconds
    while True:
        plan: dict[str, Any] = client.get(f"/v1/plans/{plan_id}").json()
        if plan["status"] in FINISHED:
            return plan
        assert time.monotonic() < end_at
        time.sleep(0.01)


def events(client: TestClient, plan_id: str, *, after: int | None = None) -> list[dict[str, Any]]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    response = client.get(f"/v1/plans/{plan_id}/events", headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.replace("\r\n", "\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if lines:
            event: dict[str, Any] = json.loads(lines["data"])
            assert (lines["id"], lines["event"]) == (str(event["seq"]), event["type"])
            found.append(event)
    return found


def test_a_plan_that_takes_longer_than_the_wait_is_accepted(slow_client: TestClient, asked: dict[str, Any]) -> None:
    response = post(slow_client, asked, tenths=5, wait_s=0.1)
    assert response.status_code == 202
    plan = response.json()
    assert response.headers["location"] == f"/v1/plans/{plan['id']}"
    assert plan["status"] in {"queued", "running"}
    assert plan["plans"] == []
    assert plan["request"]["seed"] == 5
    assert ended(slow_client, plan["id"])["status"] == "succeeded"


def test_asking_again_while_it_runs_waits_for_the_same_plan(slow_client: TestClient, asked: dict[str, Any]) -> None:
    first = post(slow_client, asked, tenths=5)
    again = post(slow_client, asked, tenths=5, wait_s=20.0)
    assert (first.status_code, again.status_code) == (202, 201)
    assert first.json()["id"] == again.json()["id"]


def test_events_tell_the_whole_life_and_resume_where_they_were_left(
    slow_client: TestClient, asked: dict[str, Any]
) -> None:
    plan_id = post(slow_client, asked, tenths=8).json()["id"]
    told = events(slow_client, plan_id)
    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
    types = [event["type"] for event in told]
    assert (types[:2], types[-1]) == (["queued", "started"], "succeeded")
    assert "progress" in types
    progress = told[types.index("progress")]
    assert (progress["best_s"], progress["bound_s"]) == (2.0, 1.0)
    assert events(slow_client, plan_id, after=2) == told[2:]
    assert events(slow_client, plan_id, after=len(told)) == []


def test_a_rank_of_an_unfinished_plan_is_a_wrong_state(slow_client: TestClient, asked: dict[str, Any]) -> None:
    plan_id = post(slow_client, asked, tenths=50).json()["id"]
    response = slow_client.get(f"/v1/plans/{plan_id}/ranked/1")
    assert (response.status_code, response.json()["code"]) == (409, "wrong-state")


def test_cancelling_ends_a_running_plan_long_before_its_time(slow_client: TestClient, asked: dict[str, Any]) -> None:
    """A plan of half a minute. How fast it is when nothing else runs is measured by benchmarks."""
    plan_id = post(slow_client, asked, tenths=300, wait_s=1.0).json()["id"]
    begun_at = time.monotonic()
    response = slow_client.delete(f"/v1/plans/{plan_id}")
    assert response.status_code == 202
    assert ended(slow_client, plan_id)["status"] == "cancelled"
    assert time.monotonic() - begun_at < 10
    assert slow_client.delete(f"/v1/plans/{plan_id}?cancel_only=true").status_code == 409
    assert events(slow_client, plan_id)[-1]["type"] == "cancelled"


def test_a_cancelled_request_can_be_asked_again(slow_client: TestClient, asked: dict[str, Any]) -> None:
    plan_id = post(slow_client, asked, tenths=300).json()["id"]
    slow_client.delete(f"/v1/plans/{plan_id}")
    ended(slow_client, plan_id)
    again = post(slow_client, asked, tenths=300).json()
    assert again["id"] != plan_id
    slow_client.delete(f"/v1/plans/{again['id']}")


def test_a_killed_worker_is_told_and_the_next_plan_succeeds(slow_client: TestClient, asked: dict[str, Any]) -> None:
    response = post(slow_client, asked, tenths=666, wait_s=20.0)
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "worker-lost"
    failed = slow_client.get("/v1/plans", params={"status": "failed"}).json()["items"]
    plan = slow_client.get(f"/v1/plans/{failed[0]['id']}").json()
    assert "SIGKILL" in plan["error"]["detail"]
    assert post(slow_client, asked, tenths=0, wait_s=20.0).status_code == 201


def test_too_many_unfinished_plans_are_refused_for_now(slow_client: TestClient, asked: dict[str, Any]) -> None:
    ids = [
        post(slow_client, {**asked, "top_k": k}, tenths=300).json()["id"] for k in range(1, 5)
    ]  # max_queued_jobs is 4
    response = post(slow_client, {**asked, "top_k": 9}, tenths=300)
    assert (response.status_code, response.json()["code"]) == (429, "too-many-jobs")
    assert int(response.headers["retry-after"]) > 0
    for plan_id in ids:
        slow_client.delete(f"/v1/plans/{plan_id}")


def test_a_restart_finishes_what_was_running_and_queued(
    slow_settings: Settings, slow_kinds: dict[str, Kind], asked: dict[str, Any]
) -> None:
    with TestClient(create_app(slow_settings, kinds=slow_kinds)) as before:
        running = post(before, {**asked, "top_k": 1}, tenths=20).json()
        while before.get(f"/v1/plans/{running['id']}").json()["status"] == "queued":
            time.sleep(0.01)
        queued = post(before, {**asked, "top_k": 2}, tenths=1).json()
        assert before.get(f"/v1/plans/{running['id']}").json()["status"] == "running"
    with TestClient(create_app(slow_settings, kinds=slow_kinds)) as after:
        for plan in (running, queued):
            assert ended(after, plan["id"])["status"] == "succeeded"
        types = [event["type"] for event in events(after, running["id"])]
        assert types.count("started") == 2


@pytest.mark.parametrize("path", ["", "/ranked/1", "/events"])
def test_a_plan_that_does_not_exist_is_not_found(slow_client: TestClient, path: str) -> None:
    response = slow_client.get(f"/v1/plans/plan-nobody{path}")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


class Noting:
    """A runner that notes how long each request waits for which job, and otherwise leaves the work to another."""

    def __init__(self, runner: Any) -> None:
        self._runner, self.waits = runner, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    async def wait(self, key: Any, *, timeout_s: float) -> None:
        self.waits.append(timeout_s)
        await self._runner.wait(key, timeout_s=timeout_s)


def test_a_request_waits_once_for_a_plan_that_is_not_finished(slow_client: TestClient, asked: dict[str, Any]) -> None:
    service = slow_client.app.state.service  # type: ignore[attr-defined]
    service.runner = noting = Noting(service.runner)
    plan_id = post(slow_client, asked, tenths=8, wait_s=0.1).json()["id"]
    assert noting.waits == [0.1]
    assert post(slow_client, asked, tenths=8, wait_s=0.2).status_code == 202
    assert noting.waits == [0.1, 0.2]
    assert ended(slow_client, plan_id)["status"] == "succeeded"
    assert post(slow_client, asked, tenths=8, wait_s=0.3).status_code == 201
    assert noting.waits == [0.1, 0.2]
