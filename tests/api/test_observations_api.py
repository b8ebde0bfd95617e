"""Observations: told by a log or by numbers, kept beside their prediction, judged, listed and deleted."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.intake.examples import EXAMPLE_OBSERVATION_ID
from planner.schemas.observation import Observation

ROW: dict[str, Any] = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64, "precision": "bf16", "framework": "megatron"},
    "strategy": {"tp": 1, "pp": 1, "dp": 8, "zero": 1, "micro_batch_size": 2},
}


def line(step: int, seconds: float) -> str:
    return f" iteration {step:8d}/     500 | elapsed time per iteration (ms): {1000 * seconds:.1f} | global batch size:    64 |\n"


def told(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/observations", json={"row": ROW, **body})
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/observations/{document['id']}"
    Observation.model_validate(document)
    return document


def refused(client: TestClient, **body: Any) -> tuple[str, str]:
    answer = client.post("/v1/observations", json={"row": ROW, **body})
    assert answer.status_code == 422, answer.text
    (problem, *_) = answer.json()["errors"]
    assert problem["hint"]
    return problem["pointer"], problem["message"]


@pytest.fixture(scope="module")
def predicted_s(client: TestClient) -> float:
    return float(client.post("/v1/evaluate", json=ROW).json()["step_time_s"])


def test_a_log_is_read_and_only_its_digest_and_first_lines_are_kept(client: TestClient, predicted_s: float) -> None:
    log = line(10, 9 * predicted_s) + "".join(line(10 * i, predicted_s * 1.05) for i in range(2, 30)) + "secret\n"
    document = told(client, log=log)
    assert document["measured"]["step_time_s"] == pytest.approx(predicted_s * 1.05, abs=1e-4)
    assert (document["measured"]["kind"], document["measured"]["num_steps"]) == ("interval_mean", 280)
    assert document["source"]["format"] == "megatron"
    assert len(document["source"]["lines"]) == 5
    assert "secret" not in str(document)
    assert document["predicted"]["step_time_s"] == predicted_s
    assert (document["used"], document["flags"], document["remarks"]) == (True, [], [])


def test_the_same_run_told_twice_is_one_observation(client: TestClient, predicted_s: float) -> None:
    first, again = (told(client, measured={"step_time_s": round(predicted_s, 3)}) for _ in range(2))
    assert first == again
    assert client.get(f"/v1/observations/{first['id']}").json() == first
    other = told(client, measured={"step_time_s": round(predicted_s, 3), "peak_memory_gib": 30.0})
    assert other["id"] != first["id"]


def test_a_number_fifty_times_off_is_kept_and_not_used(client: TestClient, predicted_s: float) -> None:
    document = told(client, measured={"step_time_s": round(51 * predicted_s, 3)})
    assert (document["used"], document["flags"]) == (False, ["implausible"])
    assert document["remarks"] == [
        "The measured time or memory is more than 50 times off the prediction. Check the unit and the row."
    ]
    assert told(client, measured={"step_time_s": round(49 * predicted_s, 3)})["used"] is True
    # Bytes in place of GiB.
    memory = told(client, measured={"step_time_s": round(predicted_s, 3), "peak_memory_gib": 30000.0})
    assert (memory["used"], memory["flags"]) == (False, ["implausible"])


def test_what_is_printed_more_coarsely_than_the_range_is_not_used(client: TestClient, predicted_s: float) -> None:
    low, high = client.post("/v1/evaluate", json=ROW).json()["step_time_range_s"]
    just = {"step_time_s": predicted_s, "resolution_fraction": 0.99 * (high - low) / predicted_s}
    coarse = {"step_time_s": predicted_s, "resolution_fraction": 1.01 * (high - low) / predicted_s}
    assert told(client, measured=just)["flags"] == []
    assert (told(client, measured=coarse)["flags"], told(client, measured=coarse)["used"]) == (["coarse"], False)


def test_a_plan_that_is_predicted_not_to_run_is_kept(client: TestClient) -> None:
    row = {**ROW, "strategy": {**ROW["strategy"], "tp": 3, "dp": 2}}
    document = told(client, row=row, measured={"step_time_s": 1.234})
    assert (document["predicted"], document["used"], document["flags"]) == (None, False, ["not-predicted"])


def test_memory_is_compared_by_the_counter_that_was_read(client: TestClient, predicted_s: float) -> None:
    memory = client.post("/v1/evaluate", json=ROW).json()["memory"]
    for counter in ("allocated", "reserved", "device"):
        measured = {"step_time_s": predicted_s, "peak_memory_gib": 30.0, "memory_counter": counter}
        peak = told(client, measured=measured)["predicted"]["peak_memory_gib"]
        assert peak == memory[f"peak_{counter}_bytes"] / 2**30


def test_what_cannot_be_read_is_refused_with_where_and_what_to_do(client: TestClient) -> None:
    assert refused(client) == ("", "the request holds neither a log nor numbers")
    assert refused(client, log="x", measured={"step_time_s": 1.0}) == ("", "the request holds a log and numbers")
    assert refused(client, log="nothing\n") == (
        "/log", "the log has 1 lines, but none of them says how long a step took",
    )  # fmt: skip
    other = {**ROW, "training": {**ROW["training"], "framework": "torchtitan"}}
    assert refused(client, row=other, log=line(1, 1.0) + line(2, 1.0)) == (
        "/log", "the log is of Megatron-LM, which the row's framework torchtitan does not run",
    )  # fmt: skip
    assert refused(client, measured={"step_time_s": 0})[0] == "/measured/step_time_s"
    assert refused(client, measured={"step_time_s": 1e-300})[0] == "/measured/step_time_s"
    assert refused(client, measured={"step_time_s": 1.0, "memory_rank": 10**400})[0] == "/measured/memory_rank"
    assert refused(client, measured={"step_time_s": 1.0}, flags=["odd"])[0] == "/flags/0"
    assert refused(client, log=line(1, 1.0), flags=["coarse"]) == ("/flags", "flags is what the log itself says")
    assert refused(client, row={**ROW, "model": {"preset": "llama-9"}}, measured={"step_time_s": 1.0})[0] == "/row"
    assert refused(client, row={"model": {}}, measured={"step_time_s": 1.0})[0].startswith("/row/")
    assert refused(client, row=3, measured={"step_time_s": 1.0})[0] == "/row"


def test_an_observation_is_deleted_and_then_unknown(client: TestClient, predicted_s: float) -> None:
    path = f"/v1/observations/{told(client, measured={'step_time_s': round(1.1 * predicted_s, 3)})['id']}"
    answer = client.delete(path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert (client.get(path).status_code, client.delete(path).status_code) == (404, 404)
    kept = client.delete(f"/v1/observations/{EXAMPLE_OBSERVATION_ID}")
    assert (kept.status_code, kept.json()["code"]) == (409, "wrong-state")


def test_the_list_shows_each_in_a_few_numbers(client: TestClient, predicted_s: float) -> None:
    made = told(client, measured={"step_time_s": round(1.2 * predicted_s, 3), "peak_memory_gib": 25.5})
    page = client.get("/v1/observations", params={"limit": 1}).json()
    assert page["next_cursor"]
    (entry,) = page["items"]
    assert entry == {
        "id": made["id"], "created_at": made["created_at"], "framework": "megatron", "gpu": "H100-SXM-80GB", "used": True,
        "step_time_s": round(1.2 * predicted_s, 3), "peak_memory_gib": 25.5, "predicted_step_time_s": predicted_s, "flags": [],
    }  # fmt: skip
