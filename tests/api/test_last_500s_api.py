"""Input that a database cannot hold: it is refused with the rule that it breaks, or not found, and never a bug of the service."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.intake.examples import example_calibration

CALIBRATION: dict[str, Any] = json.loads(example_calibration().file_text())


def cursor(moment: Any, name: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps([moment, name]).encode()).decode()


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/calibrations"])
@pytest.mark.parametrize(
    "place",
    [
        cursor("2026-01-01T00:00:00Z", "\ud800"), cursor("2026-01-01T00:00:00Z", "a\0b"), cursor("2026-01-01T00:00:00Z", "x" * 81),
        cursor("0001-01-01T00:00:00+23:59", "a"), cursor("9999-12-31T23:59:59-23:59", "a"), cursor("2026-01-01T00:00:00", "a"),
        cursor(5, "a"), cursor("2026-01-01T00:00:00Z", None),
    ],
)  # fmt: skip
def test_a_cursor_that_nobody_issued_is_refused(client: TestClient, path: str, place: str) -> None:
    answer = client.get(path, params={"cursor": place})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/query/cursor"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/plans/a%00b",
        "/v1/plans/a%00b/ranked/1",
        "/v1/plans/a%00b/events",
        "/v1/calibrations/a%00b",
        "/v1/plans/a%00b/exports/megatron",
    ],
)
def test_an_id_that_no_database_can_hold_is_refused(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].endswith("_id")


def test_such_an_id_is_refused_when_it_is_cancelled(client: TestClient) -> None:
    assert client.delete("/v1/plans/a%00b").status_code == 422


@pytest.mark.parametrize("last", [2**31, 2**63, 10**30])
def test_an_event_number_that_no_stream_reaches_is_refused(client: TestClient, last: int) -> None:
    plan = client.get("/v1/plans").json()["items"][0]["id"]
    answer = client.get(f"/v1/plans/{plan}/events", headers={"Last-Event-ID": str(last)})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("/header/")


@pytest.mark.parametrize(
    ("field", "value"), [("gpu", "x" * 65), ("gpus_per_node", 2**31), ("gpus_per_node", 1025), ("num_nodes", 2**63)]
)
def test_a_fingerprint_beyond_any_machine_is_refused(client: TestClient, field: str, value: Any) -> None:
    document = {**CALIBRATION, "fingerprint": {**CALIBRATION["fingerprint"], field: value}}
    document.pop("id", None)
    answer = client.post("/v1/calibrations", json=document)
    assert answer.status_code == 422
    assert field in answer.text


@pytest.mark.parametrize(
    "moment",
    [
        "yesterday", "", "2026-02-30", "2026-13-01", "20261127", "2026-11-27 09:30:00Z", "2026-11-27T25:00:00Z",
        "2026-11-27T09:30:00", "2026-W48-5", "2026-11-27T09:30:00+25:00", "2026-11-27\n", "\uff12026-11-27", "x" * 100_000,
    ],
)  # fmt: skip
def test_a_calibration_without_a_readable_time_is_refused(client: TestClient, moment: str) -> None:
    document = {key: value for key, value in CALIBRATION.items() if key != "id"} | {"created_at": moment}
    answer = client.post("/v1/calibrations", json=document)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/created_at"
    assert "RFC 3339" in error["message"]
    assert repr(moment[:60]) in error["message"]
    assert len(answer.content) < 2000


@pytest.mark.parametrize(
    "moment", ["2024-02-29", "2026-11-27T09:30:00Z", "2026-11-27T09:30:00.123456+05:45", "2026-11-27T23:59:59-11:00"]
)
def test_every_form_of_rfc_3339_is_stored_as_it_is_written(client: TestClient, moment: str) -> None:
    document = {key: value for key, value in CALIBRATION.items() if key != "id"} | {"created_at": moment}
    answer = client.post("/v1/calibrations", json=document)
    assert answer.status_code == 201
    assert answer.json()["created_at"] == moment


def test_a_fingerprint_at_the_bounds_is_stored(client: TestClient) -> None:
    fingerprint = {**CALIBRATION["fingerprint"], "gpu": "x" * 64, "gpus_per_node": 1024}
    document = {**CALIBRATION, "fingerprint": fingerprint}
    document.pop("id", None)
    assert client.post("/v1/calibrations", json=document).status_code == 201


def test_names_of_calibrations_are_bounded_in_all_rows_together(client: TestClient, root: Path) -> None:
    """16 in a cluster, as its schema says; 64 different ones in all rows of a request."""
    row = json.loads((root / "examples" / "requests" / "evaluate.jsonl").read_text().splitlines()[0])

    def asked(*names: str) -> dict[str, Any]:
        return {**row, "cluster": {**row["cluster"], "calibration": list(names)}}

    rows = [asked(*(f"c{number}-{place}" for place in range(16))) for number in range(4)]
    answer = client.post("/v1/evaluate", json=rows)
    assert answer.status_code == 200
    assert {each["verdict"] for each in answer.json()} == {"invalid"}
    refused = client.post("/v1/evaluate", json=[*rows, asked("one more")])
    assert refused.status_code == 422
    assert "names 65 calibrations" in refused.text
    (long,) = client.post("/v1/evaluate", json=[asked(*(f"c{place}" for place in range(60_000 // 20)))]).json()
    assert long["verdict"] == "invalid"
    assert "16" in json.dumps(long["reasons"])
