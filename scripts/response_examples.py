"""The answers that the OpenAPI document shows, asked of the service itself so that they cannot contradict themselves.

    python -m scripts.response_examples write      # after answers changed; look at the difference

A service with its default settings starts in this process, gets the first request of every call, and what it sends is kept in
`app/service/api/examples/answers.json`. A test asks again and compares.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from app.errors import InternalError, TimeLimitError, TooManyJobsError, UnavailableError, problem_document
from app.service.api.examples.answers import ANSWERS, shortened
from app.service.api.examples.requests import REQUESTS, Example
from app.service.intake.examples import (
    EXAMPLE_AGENT_ID,
    EXAMPLE_OBSERVATION_ID,
    EXAMPLE_PLAN_ID,
    EXAMPLE_PROFILING_JOB_ID,
    EXAMPLE_TUNING_ID,
    example_calibration,
)
from app.service.main import create_app
from app.settings import Settings

VARIES = frozenset({
    "created_at", "started_at", "finished_at", "last_seen_at", "at", "elapsed_s", "model_revision", "request_digest", "request_id", "version", "product_version", "in_touch",
    "agents_in_touch", "estimated_start_at", "key", "expires_at", "last_used_at",
})  # fmt: skip
"""Fields that differ between two equal answers: times, digests that cover the sources, releases, and secrets."""
PLANS, EVALUATE, JUDGE = REQUESTS["/v1/plans"], REQUESTS["/v1/evaluate"], REQUESTS["/v1/judge"]
CALIBRATIONS, KEYS = REQUESTS["/v1/calibrations"], REQUESTS["/v1/keys"]
_NOT_REAL = {"key": "mw_" + "0123456789" * 4}
"""What stands in the documentation in place of a key: a scanner for leaked ones should find none in our sources."""
Answers = dict[str, dict[str, Any]]


def recorded(client: TestClient) -> Answers:
    """What the service behind this client answers to the examples: by call and status, named answers or a text."""
    # Before anything is posted, so that the lists hold what every tenant has from the start.
    until_ready(client)
    found: Answers = {}
    plan, calibration = f"/v1/plans/{EXAMPLE_PLAN_ID}", f"/v1/calibrations/{example_calibration().id}"
    for call, path in {
        "GET /v1/plans": "/v1/plans",
        "GET /v1/plans/{plan_id}": plan,
        "GET /v1/plans/{plan_id}/ranked/{rank}": f"{plan}/ranked/1",
        "GET /v1/plans/{plan_id}/exports/{framework}": f"{plan}/exports/megatron",
        "GET /v1/calibrations": "/v1/calibrations",
        "GET /v1/calibrations/{calibration_id}": calibration,
        "GET /v1/observations": "/v1/observations",
        "GET /v1/observations/{observation_id}": f"/v1/observations/{EXAMPLE_OBSERVATION_ID}",
        "GET /v1/profiling-jobs": "/v1/profiling-jobs",
        "GET /v1/profiling-jobs/{job_id}": f"/v1/profiling-jobs/{EXAMPLE_PROFILING_JOB_ID}",
        "GET /v1/tunings": "/v1/tunings",
        "GET /v1/tunings/{tuning_id}": f"/v1/tunings/{EXAMPLE_TUNING_ID}",
        "GET /v1/agents": "/v1/agents",
        "GET /v1/agents/{agent_id}": f"/v1/agents/{EXAMPLE_AGENT_ID}",
        "GET /v1/presets/models": "/v1/presets/models",
        "GET /v1/presets/gpus": "/v1/presets/gpus",
        "GET /v1/presets/clusters": "/v1/presets/clusters",
        "GET /v1/presets/frameworks": "/v1/presets/frameworks",
        "GET /healthz": "/healthz",
        "GET /readyz": "/readyz",
    }.items():
        found[call] = {"200": {"answer": _json(client, path)}}
    # Asked without waiting, and cancelled at once.
    begun = client.post("/v1/plans", json={**PLANS["moe"].body, "wait_s": 0}).raise_for_status().json()
    cancelled = client.delete(f"/v1/plans/{begun['id']}").raise_for_status().json()
    found["POST /v1/plans"] = {
        "201": {"finished": _sent(client, "/v1/plans", PLANS["preset"])},
        "202": {"begun": begun},
    }
    found["DELETE /v1/plans/{plan_id}"] = {"202": {"cancelled": cancelled}}
    found["POST /v1/evaluate"] = {"200": {n: _sent(client, "/v1/evaluate", EVALUATE[n]) for n in ("row", "wrong_row")}}
    found["POST /v1/judge"] = {"200": {"answer": _sent(client, "/v1/judge", JUDGE["deepspeed"])}}
    found["POST /v1/calibrations"] = {"201": {"stored": _sent(client, "/v1/calibrations", CALIBRATIONS["products"])}}
    observed = _sent(client, "/v1/observations", REQUESTS["/v1/observations"]["log"])
    found["POST /v1/observations"] = {"201": {"log": observed}}
    found |= _corrections(client)
    found["POST /v1/keys"] = {"201": {"made": {**_sent(client, "/v1/keys", KEYS["ci"]), **_NOT_REAL}}}
    found["GET /v1/keys"] = {"200": {"answer": _json(client, "/v1/keys")}}
    found["GET /v1/audit"] = {"200": {"answer": _json(client, "/v1/audit")}}
    found |= _agent_answers(client)
    found["GET /v1/plans/{plan_id}/events"] = {"200": client.get(f"{plan}/events").text}
    found["GET /v1/tunings/{tuning_id}/events"] = {"200": client.get(f"/v1/tunings/{EXAMPLE_TUNING_ID}/events").text}
    found["GET /metrics"] = {"200": "\n".join(client.get("/metrics").text.splitlines()[:12]) + "\n"}
    found["problems"] = _problems(client)
    return found


def _corrections(client: TestClient) -> Answers:
    """What that observation teaches, of which a page needs no more than the beginning, and a switch."""
    items = _json(client, "/v1/corrections")["items"]
    path = "/v1/corrections/{correction_id}"
    ((name, example),) = REQUESTS[path].items()
    switched = client.put(f"/v1/corrections/{items[0]['id']}", json=example.body).raise_for_status().json()
    return {
        "GET /v1/corrections": {"200": {"answer": {"items": items[:2]}}},
        f"GET {path}": {"200": {"answer": items[0]}},
        f"PUT {path}": {"200": {name: switched}},
    }


def _agent_answers(client: TestClient) -> Answers:
    """The calls of an agent, before anything is asked of it, and of somebody who asks it for a measurement."""
    agent = f"/v1/agents/{EXAMPLE_AGENT_ID}"
    found: Answers = {}
    for name in ("lease", "heartbeat", "results"):
        path = f"/v1/agents/{{agent_id}}/{name}"
        first, example = next(iter(REQUESTS[path].items()))
        found[f"POST {path}"] = {"200": {first: _sent(client, f"{agent}/{name}", example)}}
    found["POST /v1/agents"] = {"201": {"register": _sent(client, "/v1/agents", REQUESTS["/v1/agents"]["register"])}}
    asked = _sent(client, "/v1/profiling-jobs", REQUESTS["/v1/profiling-jobs"]["agent"])
    cancelled = client.delete(f"/v1/profiling-jobs/{asked['id']}").raise_for_status().json()
    found["POST /v1/profiling-jobs"] = {"202": {"agent": asked}}
    found["DELETE /v1/profiling-jobs/{job_id}"] = {"202": {"cancelled": cancelled}}
    tuning = _sent(client, "/v1/tunings", REQUESTS["/v1/tunings"]["plan"])
    cancelled = client.delete(f"/v1/tunings/{tuning['id']}").raise_for_status().json()
    found["POST /v1/tunings"] = {"202": {"plan": tuning}}
    found["DELETE /v1/tunings/{tuning_id}"] = {"202": {"cancelled": cancelled}}
    return found


def _problems(client: TestClient) -> dict[str, Any]:
    """A problem of every status: those that a request can bring about are, the others are built like the service builds them."""
    body = PLANS["preset"].body
    misspelt = {**body, "training": {**body["training"], "sequence_length": 8192}}
    json_type, plan = {"Content-Type": "application/json"}, f"/v1/plans/{EXAMPLE_PLAN_ID}"
    brought_about = (
        client.post("/v1/plans", content=b"{'model': 1}", headers=json_type),
        client.get("/v1/plans", headers={"Authorization": "Bearer not-a-key"}),
        client.get("/v1/plans", headers={"Host": "planner.example.org"}),
        client.get("/v1/plans/plan-unknown"),
        client.delete(plan),
        client.post("/v1/plans", content=b"[" + b" " * (1 << 20) + b"]", headers=json_type),
        client.post("/v1/plans", content=b"model: llama", headers={"Content-Type": "text/yaml"}),
        client.post("/v1/plans", json=misspelt),
    )
    built = (
        TooManyJobsError(
            "you already have 100 unfinished jobs",
            hint="Wait for some of them to end, or cancel some.",
            context={"quota": "unfinished_jobs", "limit": 100, "used": 100},
        ),
        InternalError("the service has failed because of a bug", hint="Please report it with the server's log."),
        UnavailableError("the database cannot be reached", hint="Try again in a moment."),
        TimeLimitError("the answer was not complete after 300 s", hint="Send fewer rows at a time."),
    )
    documents = [answer.json() for answer in brought_about] + [problem_document(error) for error in built]
    return {str(document["status"]): document for document in documents}


def until_ready(client: TestClient) -> None:
    """Waits until the seeded plan, which a new service computes first, is there."""
    end_at = time.monotonic() + 60.0
    while client.get(f"/v1/plans/{EXAMPLE_PLAN_ID}").json()["status"] != "succeeded":
        if time.monotonic() > end_at:
            raise TimeoutError("the example plan was not computed within a minute")
        time.sleep(0.05)


def comparable(answer: Any) -> Any:
    """The answer without what differs between two equal ones."""
    if isinstance(answer, Mapping):
        # How far a job got before it was looked at is a matter of milliseconds, and ids of plans are digests.
        unfinished = answer.get("status") in {"queued", "running", "cancelled"}
        # Ids of keys and of entries of the audit log are drawn; the other objects of the examples have ids of their own, or digests.
        drawn = {"id", "status", "position"} if unfinished else set()
        drawn |= {"id", "object"} if "scopes" in answer or "action" in answer else set()
        left_out = VARIES | drawn
        return {key: comparable(value) for key, value in answer.items() if key not in left_out}
    if isinstance(answer, list):
        return [comparable(each) for each in answer]
    return answer


def _json(client: TestClient, path: str) -> Any:
    return shortened(client.get(path).raise_for_status().json())


def _sent(client: TestClient, path: str, example: Example) -> Any:
    return client.post(path, json=example.body).raise_for_status().json()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write",))
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), pool_size=1, log_level="error")
        with TestClient(create_app(settings)) as client:
            answers = recorded(client)
    ANSWERS.write_text(json.dumps(answers, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
