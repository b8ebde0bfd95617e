"""Plans over HTTP with the real planner: asked for, read, listed; the same question has one answer."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.api.schemas import PlanDocument
from planner.one_plan.detail import plan_detail
from planner.schemas import RankedPlan


@pytest.fixture
def planned(client: TestClient, asked: dict[str, Any]) -> dict[str, Any]:
    response = client.post("/v1/plans", json=asked)
    assert response.status_code == 201, response.text
    document: dict[str, Any] = response.json()
    return document


def test_a_posted_request_is_answered_with_ranked_plans(client: TestClient, asked: dict[str, Any]) -> None:
    response = client.post("/v1/plans", json=asked)
    assert response.status_code == 201
    plan = response.json()
    assert response.headers["location"] == f"/v1/plans/{plan['id']}"
    assert plan["status"] == "succeeded"
    assert [entry["rank"] for entry in plan["plans"]] == [1, 2, 3]
    assert all(entry["evaluation"]["verdict"] == "fits" for entry in plan["plans"])
    assert client.get(response.headers["location"]).json() == plan
    assert PlanDocument.model_validate_json(response.text).id == plan["id"]


def test_times_are_rfc_3339_in_utc(planned: dict[str, Any]) -> None:
    assert planned["created_at"].endswith("Z")
    offset = datetime.fromisoformat(planned["created_at"]).utcoffset()
    assert offset is not None
    assert not offset


def test_a_plan_is_small_and_a_rank_has_the_stages(client: TestClient, planned: dict[str, Any]) -> None:
    assert all(entry["evaluation"]["memory"]["stages"] is None for entry in planned["plans"])
    response = client.get(f"/v1/plans/{planned['id']}/ranked/2")
    ranked = RankedPlan.model_validate_json(response.text)
    assert ranked.rank == 2
    assert ranked.evaluation.memory is not None
    stages = ranked.evaluation.memory.stages
    assert stages
    assert len(stages) == ranked.strategy.pp
    for stage in stages:
        assert sum(stage.breakdown_bytes.values()) == pytest.approx(stage.peak_allocated_bytes)
    assert response.json()["strategy"] == planned["plans"][1]["strategy"]


def test_a_saved_answer_is_shown_with_the_stages_that_it_leaves_out(
    client: TestClient, planned: dict[str, Any]
) -> None:
    ranked = client.get(f"/v1/plans/{planned['id']}/ranked/2").json()
    shown = plan_detail(planned, 2)
    assert shown["evaluation"]["memory"] == ranked["evaluation"]["memory"]
    assert shown["neighbours"]["priced"]
    assert plan_detail(ranked, 2)["evaluation"]["memory"] == ranked["evaluation"]["memory"]


def test_a_rank_that_does_not_exist_is_not_found(client: TestClient, planned: dict[str, Any]) -> None:
    response = client.get(f"/v1/plans/{planned['id']}/ranked/4")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


def test_the_same_request_gets_the_stored_answer(
    client: TestClient, asked: dict[str, Any], planned: dict[str, Any]
) -> None:
    again = client.post("/v1/plans", json={**asked, "wait_s": 3.0})
    assert again.status_code == 201
    assert again.json() == planned


def test_the_same_request_spelled_out_gets_the_stored_answer(client: TestClient, planned: dict[str, Any]) -> None:
    again = client.post("/v1/plans", json=planned["request"])
    assert again.status_code == 201, again.text
    assert again.json()["id"] == planned["id"]


def test_another_request_gets_another_plan(client: TestClient, asked: dict[str, Any], planned: dict[str, Any]) -> None:
    other = client.post("/v1/plans", json={**asked, "top_k": 2}).json()
    assert other["id"] != planned["id"]
    assert other["request_digest"] != planned["request_digest"]


def test_an_idempotency_key_stands_for_one_body(client: TestClient, asked: dict[str, Any]) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = client.post("/v1/plans", json=asked, headers=headers)
    assert client.post("/v1/plans", json=asked, headers=headers).json()["id"] == first.json()["id"]
    other = client.post("/v1/plans", json={**asked, "top_k": 1}, headers=headers)
    assert other.status_code == 422
    assert other.json()["errors"][0]["code"] == "idempotency-key-reused"


def test_no_feasible_plan_is_an_answer(client: TestClient, asked: dict[str, Any]) -> None:
    asked["model"] = {"preset": "llama-3.1-405b"}
    response = client.post("/v1/plans", json=asked)
    assert response.status_code == 201, response.text
    plan = response.json()
    assert (plan["status"], plan["plans"]) == ("succeeded", [])
    assert sum(plan["rejected"].values()) > 0
    assert plan["nearest_infeasible"]


def test_a_list_pages_through_all_plans_newest_first(client: TestClient, asked: dict[str, Any]) -> None:
    made = [client.post("/v1/plans", json={**asked, "top_k": k}).json()["id"] for k in (4, 5, 6)]
    seen: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    for _ in range(50):
        page = client.get("/v1/plans", params={"limit": 2, **cursor}).json()
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert page["next_cursor"] is None
    ids = [entry["id"] for entry in seen]
    assert ids[:3] == made[::-1]
    assert len(set(ids)) == len(ids)
    assert seen[0]["headline"]["step_time_s"] > 0
    assert [e["id"] for e in client.get("/v1/plans", params={"status": "failed"}).json()["items"]] == []


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/calibrations"])
@pytest.mark.parametrize(("limit", "status"), [(0, 422), (1, 200), (100, 200), (101, 422)])
def test_a_page_holds_one_to_a_hundred_entries(client: TestClient, path: str, limit: int, status: int) -> None:
    response = client.get(path, params={"limit": limit})
    assert response.status_code == status
    if status == 422:
        assert response.json()["errors"][0]["pointer"] == "/query/limit"


def test_a_list_entry_is_small(client: TestClient, planned: dict[str, Any]) -> None:
    entry = client.get("/v1/plans", params={"limit": 1}).json()["items"][0]
    assert len(json.dumps(entry)) < 500


def test_a_finished_plan_cannot_be_cancelled(client: TestClient, planned: dict[str, Any]) -> None:
    response = client.delete(f"/v1/plans/{planned['id']}?cancel_only=true")
    assert (response.status_code, response.json()["code"]) == (409, "wrong-state")


def test_a_worker_answers_as_the_planner_does(planned: dict[str, Any], asked: dict[str, Any]) -> None:
    """What crosses processes and the database is the planner's own answer."""
    from planner.plan import plan

    here = plan(asked)
    assert here["request_digest"] == planned["request_digest"]
    assert [entry["strategy"] for entry in here["plans"]] == [entry["strategy"] for entry in planned["plans"]]
    times = [entry["evaluation"]["step_time_s"] for entry in planned["plans"]]
    assert [entry["evaluation"]["step_time_s"] for entry in here["plans"]] == times


@pytest.mark.parametrize(("rank", "status"), [(0, 422), (1, 404), (1000, 404), (1001, 422)])
def test_ranks_go_from_one_to_a_thousand(client: TestClient, rank: int, status: int) -> None:
    assert client.get(f"/v1/plans/none/ranked/{rank}").status_code == status


@pytest.mark.parametrize(("length", "status"), [(80, 404), (81, 422)])
def test_an_id_has_at_most_80_characters(client: TestClient, length: int, status: int) -> None:
    assert client.get(f"/v1/plans/{'x' * length}").status_code == status
    assert client.get(f"/v1/calibrations/{'x' * length}").status_code == status
