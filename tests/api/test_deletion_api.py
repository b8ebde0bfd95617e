"""What can be deleted: finished plans and calibrations, with everything that belongs to them, and only by their owner."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.intake.examples import EXAMPLE_CALIBRATION, EXAMPLE_PLAN_ID, example_calibration


def test_a_finished_plan_is_deleted_and_then_unknown(client: TestClient, asked: dict[str, Any]) -> None:
    asked["top_k"] = 2
    key = {"Idempotency-Key": "deleted later"}
    plan = client.post("/v1/plans", json=asked, headers=key).json()
    path = f"/v1/plans/{plan['id']}"
    answer = client.delete(path)
    assert (answer.status_code, answer.content) == (204, b"")
    for gone in (path, f"{path}/ranked/1", f"{path}/events", f"{path}/exports/megatron"):
        assert client.get(gone).status_code == 404
    assert client.delete(path).status_code == 404
    assert plan["id"] not in [entry["id"] for entry in client.get("/v1/plans").json()["items"]]
    # The same request with the same key is a new one: what answered it is no longer there.
    again = client.post("/v1/plans", json=asked, headers=key).json()
    assert (again["status"], again["id"] != plan["id"]) == ("succeeded", True)


def test_a_queued_plan_is_cancelled_first_and_deleted_then(slow_client: TestClient, asked: dict[str, Any]) -> None:
    ids = [
        slow_client.post("/v1/plans", json={**asked, "top_k": k, "seed": 300, "wait_s": 0}).json()["id"] for k in (1, 2)
    ]
    while slow_client.get(f"/v1/plans/{ids[0]}").json()["status"] == "queued":
        time.sleep(0.01)
    path = f"/v1/plans/{ids[1]}"
    cancelled = slow_client.delete(path)
    assert (cancelled.status_code, cancelled.json()) == (202, {"id": ids[1], "status": "cancelled"})
    kept = slow_client.delete(f"{path}?cancel_only=true")
    assert (kept.status_code, kept.json()["code"]) == (409, "wrong-state")
    assert slow_client.delete(path).status_code == 204
    assert slow_client.get(path).status_code == 404
    slow_client.delete(f"/v1/plans/{ids[0]}")


def test_a_calibration_is_deleted_and_the_plans_that_it_priced_stay(client: TestClient, asked: dict[str, Any]) -> None:
    document = {**EXAMPLE_CALIBRATION, "name": "soon deleted"}
    calibration = client.post("/v1/calibrations", json=document).json()["id"]
    asked["cluster"] = {**asked["cluster"], "calibration": calibration}
    plan = client.post("/v1/plans", json=asked).json()
    assert client.delete(f"/v1/calibrations/{calibration}").status_code == 204
    assert client.get(f"/v1/calibrations/{calibration}").status_code == 404
    assert client.delete(f"/v1/calibrations/{calibration}").status_code == 404
    # The plan was asked with a copy, from which its report is still drawn.
    assert client.get(f"/v1/plans/{plan['id']}").json()["plans"] == plan["plans"]
    assert client.get(f"/plans/{plan['id']}").status_code == 200
    # A new request that names it is told so.
    refused = client.post("/v1/plans", json={**asked, "top_k": 5})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/cluster/calibration")
    assert calibration in refused.json()["errors"][0]["message"]


@pytest.mark.parametrize("path", [f"/v1/plans/{EXAMPLE_PLAN_ID}", f"/v1/calibrations/{example_calibration().id}"])
def test_the_examples_of_the_documentation_are_kept(client: TestClient, path: str) -> None:
    while client.get(path).json().get("status", "succeeded") != "succeeded":
        time.sleep(0.05)
    refused = client.delete(path)
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong-state")
    assert client.get(path).status_code == 200
