"""What a tenant that uses up a quota is told over HTTP, and that others hear nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from app.service.db.keys import create_key
from app.service.intake.examples import EXAMPLE_CALIBRATION
from app.service.main import create_app
from app.settings import Settings


def refusal(answer: Any) -> tuple[Any, ...]:
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1
    return (answer.status_code, *(problem[name] for name in ("code", "quota", "limit", "used")))


def calibration(number: int) -> dict[str, Any]:
    return {**EXAMPLE_CALIBRATION, "name": f"number {number}"}


def test_many_calibrations_fill_a_tenants_room_and_nobody_elses(tmp_path: Path, asked: dict[str, Any]) -> None:
    settings = Settings(
        data_dir=tmp_path, host="0.0.0.0", pool_size=1, log_level="error", max_stored_bytes=3000, upload_rate="30/hour",
        request_rate="45/hour", max_plans=1,
    )  # fmt: skip
    with TestClient(create_app(settings)) as client:
        engine = client.app.state.service.engine  # type: ignore[attr-defined]
        alice, again, bob = (
            {"Authorization": f"Bearer {create_key(engine, tenant=tenant, name='test')[1]}"}
            for tenant in ("alice", "alice", "bob")
        )
        answers = [client.post("/v1/calibrations", json=calibration(n), headers=alice) for n in range(32)]
        stored = [answer for answer in answers if answer.status_code == 201]
        assert 1 <= len(stored) < 10
        # Up to the thirtieth the room is what is missing, from then on the rate.
        full, often = answers[29], answers[30]
        status, code, quota, limit, used = refusal(full)
        assert (status, code, quota, limit) == (429, "quota-exceeded", "stored_bytes", 3000)
        assert 0 < used <= 3000
        assert refusal(often) == (429, "too-many-requests", "uploads", 30, 30)
        # The rate is the key's, the room the tenant's.
        assert refusal(client.post("/v1/calibrations", json=calibration(99), headers=again))[2] == "stored_bytes"
        assert client.post("/v1/calibrations", json=calibration(99), headers=bob).status_code == 201
        # The example plan, which everybody has, is the one plan that these settings allow.
        assert refusal(client.post("/v1/plans", json=asked, headers=bob))[2:] == ("plans", 1, 1)
        # What is deleted makes room.
        for answer in stored:
            assert client.delete(answer.headers["location"], headers=alice).status_code == 204
        assert client.post("/v1/calibrations", json=calibration(99), headers=again).status_code == 201
        # Forty-five requests an hour: alice's first key has made thirty-two, and deleted what they stored.
        while (answer := client.get("/v1/plans", headers=alice)).status_code == 200:
            pass
        assert refusal(answer)[1:] == ("too-many-requests", "requests", 45, 45)
        assert client.get("/v1/plans", headers=again).status_code == 200


def test_too_many_unfinished_plans_say_how_many(slow_client: TestClient, asked: dict[str, Any]) -> None:
    for top_k in range(1, 5):  # max_queued_jobs is 4
        slow_client.post("/v1/plans", json={**asked, "top_k": top_k, "seed": 300, "wait_s": 0})
    answer = slow_client.post("/v1/plans", json={**asked, "top_k": 9, "seed": 300})
    assert refusal(answer) == (429, "too-many-jobs", "unfinished_jobs", 4, 4)


@pytest.mark.parametrize("rate", ["often", "60", "sixty/minute"])
def test_what_is_no_rate_is_refused_before_anything_starts(rate: str) -> None:
    with pytest.raises(ValidationError, match="upload_rate"):
        Settings(upload_rate=rate)
