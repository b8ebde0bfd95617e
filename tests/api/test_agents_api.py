"""A measurement over HTTP: asked for, leased by an agent, sent back, and used by plans with `"calibration": "auto"`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.db.keys import create_key
from app.service.intake.examples import EXAMPLE_CALIBRATION
from app.service.main import create_app
from app.settings import Settings

NODE = {"name": "node-7", "gpu": "H100-SXM-80GB", "gpus_per_node": 8, "num_nodes": 1, "product_version": "0.1.0"}


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service that wants keys, without examples and without workers that would be needed for them."""
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=folder, host="0.0.0.0", pool_size=1, log_level="error", seed_examples=False)
    with TestClient(create_app(settings)) as client:
        yield client


@pytest.fixture
def mine(public: TestClient, request: pytest.FixtureRequest) -> dict[str, str]:
    """Headers of a tenant of this test's own."""
    return key_of(public, request.node.name[:60])


def key_of(client: TestClient, tenant: str) -> dict[str, str]:
    _, secret = create_key(client.app.state.service.engine, tenant=tenant, name="test")  # type: ignore[attr-defined]
    return {"Authorization": f"Bearer {secret}"}


def registered(client: TestClient, headers: dict[str, str], **changes: object) -> str:
    answer = client.post("/v1/agents", json={**NODE, **changes}, headers=headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def asked_for(client: TestClient, headers: dict[str, str], **body: object) -> dict[str, Any]:
    answer = client.post("/v1/profiling-jobs", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/profiling-jobs/{job['id']}"
    return job


def leased(client: TestClient, headers: dict[str, str], agent: str) -> Any:
    answer = client.post(f"/v1/agents/{agent}/lease", json={"instance": "i"}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["job"]


def sent(client: TestClient, headers: dict[str, str], agent: str, **body: object) -> Any:
    return client.post(f"/v1/agents/{agent}/results", json=body, headers=headers)


def measured(**changes: object) -> dict[str, Any]:
    """A calibration of a node with eight GPUs that no example holds."""
    return {**EXAMPLE_CALIBRATION, "name": "of node 7", **changes}


def test_what_an_agent_measures_prices_plans_with_auto(
    public: TestClient, mine: dict[str, str], asked: dict[str, Any]
) -> None:
    agent = registered(public, mine)
    job = asked_for(public, mine, gpu="H100-SXM-80GB", budget_s=45, name="mine")
    assert (job["status"], job["agents_in_touch"], job["calibration"]) == ("queued", 1, None)
    given = leased(public, mine, agent)
    # The hard limit leaves the budget's half and three minutes on top.
    expected = {"id": job["id"], "attempt": 1, "budget_s": 45.0, "time_limit_s": 1.5 * 45 + 180, "name": "mine"}
    assert {field: given[field] for field in expected} == expected
    told = public.post(
        f"/v1/agents/{agent}/heartbeat", json={"lease": given["lease"], "parts_done": 3}, headers=mine
    ).json()
    assert told == {"go_on": True, "status": "running"}
    assert public.get(f"/v1/profiling-jobs/{job['id']}", headers=mine).json()["parts_done"] == 3

    for _ in range(2):  # an answer that is lost makes the agent send it again
        answer = sent(public, mine, agent, lease=given["lease"], outcome="measured", calibration=measured())
        assert answer.status_code == 200, answer.text
    ended = answer.json()
    assert (ended["status"], ended["agent"], ended["attempts"]) == ("succeeded", agent, 1)
    found = public.get("/v1/calibrations", headers=mine).json()["items"]
    assert [(each["id"], each["gpus_per_node"]) for each in found] == [(ended["calibration"], 8)]

    asked["cluster"] = {**asked["cluster"], "calibration": "auto"}
    plan = public.post("/v1/plans", json={**asked, "wait_s": 60}, headers=mine).json()
    assert plan["request"]["cluster"]["calibration"] == [ended["calibration"]]
    assert plan["plans"][0]["evaluation"]["provenance"]["calibration"].startswith("of node 7 + ")


def test_a_failed_measurement_says_why(public: TestClient, mine: dict[str, str]) -> None:
    agent = registered(public, mine)
    job = asked_for(public, mine)
    lease = leased(public, mine, agent)["lease"]
    error = {"message": "GPU 3 is used by other processes", "hint": "Wait for them to end."}
    answer = sent(public, mine, agent, lease=lease, outcome="failed", error=error)
    assert answer.status_code == 200
    kept = public.get(f"/v1/profiling-jobs/{job['id']}", headers=mine).json()
    assert (kept["status"], kept["error"]["code"]) == ("failed", "measurement")
    assert (kept["error"]["detail"], kept["error"]["hint"]) == (error["message"], error["hint"])


def test_cancelling_stops_the_agent_and_deleting_keeps_the_calibration(
    public: TestClient, mine: dict[str, str]
) -> None:
    agent = registered(public, mine)
    job = asked_for(public, mine)
    lease = leased(public, mine, agent)["lease"]
    cancelled = public.delete(f"/v1/profiling-jobs/{job['id']}", headers=mine)
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelled")
    told = public.post(f"/v1/agents/{agent}/heartbeat", json={"lease": lease}, headers=mine).json()
    assert told == {"go_on": False, "status": "cancelled"}
    refused = sent(public, mine, agent, lease=lease, outcome="measured", calibration=measured(name="late"))
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong-state")

    done = asked_for(public, mine)
    lease = leased(public, mine, agent)["lease"]
    kept = sent(public, mine, agent, lease=lease, outcome="measured", calibration=measured()).json()["calibration"]
    assert public.delete(f"/v1/profiling-jobs/{done['id']}", headers=mine).status_code == 204
    assert public.delete(f"/v1/profiling-jobs/{done['id']}", headers=mine).status_code == 404
    assert public.get(f"/v1/calibrations/{kept}", headers=mine).status_code == 200


def test_a_result_that_is_refused_stores_nothing(public: TestClient, mine: dict[str, str]) -> None:
    agent = registered(public, mine)
    asked_for(public, mine)
    lease = leased(public, mine, agent)["lease"]
    assert sent(public, mine, agent, lease=lease, outcome="measured", calibration=measured()).status_code == 200
    for number in range(3):
        again = sent(public, mine, agent, lease=lease, outcome="measured", calibration=measured(name=f"more {number}"))
        assert (again.status_code, again.json()["code"]) == (409, "wrong-state")
    assert len(public.get("/v1/calibrations", headers=mine).json()["items"]) == 1


def test_a_tenant_without_room_asks_for_no_measurement_but_keeps_those_it_asked_for(tmp_path: Path) -> None:
    limits = {"max_stored_bytes": 600, "max_profiling_jobs": 3, "agent_lease_s": 60.0, "seed_examples": False}
    with TestClient(create_app(Settings(data_dir=tmp_path, pool_size=1, log_level="error", **limits))) as client:
        agent = registered(client, {})
        asked_for(client, {})
        asked_for(client, {})
        for number in range(2):
            result = {"lease": leased(client, {}, agent)["lease"], "outcome": "measured"}
            answer = sent(client, {}, agent, **result, calibration=measured(name=f"measured {number}"))
            assert answer.status_code == 200, answer.text
        refused = client.post("/v1/profiling-jobs", json={"agent": agent})
        told = refused.json()
        assert (refused.status_code, told.get("quota"), told.get("limit")) == (429, "stored_bytes", 600)
        assert told["used"] > 600
        assert "retry-after" in refused.headers
        for stored in client.get("/v1/calibrations").json()["items"]:
            assert client.delete(f"/v1/calibrations/{stored['id']}").status_code == 204
        # Those that have ended count, until they are deleted.
        ended = asked_for(client, {})["id"]
        refused = client.post("/v1/profiling-jobs", json={"agent": agent})
        told = refused.json()
        assert (refused.status_code, told["code"], "retry-after" in refused.headers) == (429, "quota-exceeded", True)
        assert (told["quota"], told["limit"], told["used"]) == ("profiling_jobs", 3, 3)
        assert [client.delete(f"/v1/profiling-jobs/{ended}").status_code for _ in range(2)] == [202, 204]
        asked_for(client, {})


def test_an_agent_named_by_its_id_is_what_is_asked_for(public: TestClient, mine: dict[str, str]) -> None:
    agent = registered(public, mine)
    silent = registered(public, mine, name="node-8", gpus_per_node=None)
    for body, pointer, message in (
        (
            {"agent": agent, "gpu": "A100-SXM-80GB"},
            "/gpu",
            f"gpu is A100-SXM-80GB, but agent {agent} has H100-SXM-80GB",
        ),
        ({"agent": agent, "num_nodes": 2}, "/num_nodes", f"num_nodes is 2, but agent {agent} has 1"),
        (
            {"agent": silent, "gpus_per_node": 8},
            "/gpus_per_node",
            f"gpus_per_node is 8, but agent {silent} does not say it",
        ),
    ):
        refused = public.post("/v1/profiling-jobs", json=body, headers=mine)
        assert refused.status_code == 422
        found = refused.json()["errors"][0]
        assert (found["pointer"], found["message"]) == (pointer, message)
    asked_for(public, mine, agent=agent, gpu="H100-SXM-80GB", gpus_per_node=8, num_nodes=1)
    asked_for(public, mine, agent=silent)


def test_agents_and_their_jobs_are_their_tenants(public: TestClient, mine: dict[str, str]) -> None:
    other = key_of(public, "somebody else")
    agent, theirs = registered(public, mine), registered(public, other)
    job = asked_for(public, mine)
    assert leased(public, other, theirs) is None
    lease = leased(public, mine, agent)["lease"]
    body: dict[str, Any]
    for method, path, body in (
        ("GET", f"/v1/agents/{agent}", {}), ("POST", f"/v1/agents/{agent}/lease", {"instance": "i"}),
        ("POST", f"/v1/agents/{agent}/heartbeat", {"lease": lease}),
        ("POST", f"/v1/agents/{agent}/results", {"lease": lease, "outcome": "given-back"}),
        ("GET", f"/v1/profiling-jobs/{job['id']}", {}), ("DELETE", f"/v1/profiling-jobs/{job['id']}", {}),
    ):  # fmt: skip
        assert public.request(method, path, json=body or None, headers=other).status_code == 404, path
    stolen = sent(public, other, theirs, lease=lease, outcome="measured", calibration=measured())
    assert stolen.status_code == 409
    refused = public.post("/v1/profiling-jobs", json={"agent": agent}, headers=other)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/agent")
    assert [each["id"] for each in public.get("/v1/agents", headers=other).json()["items"]] == [theirs]
    assert public.get("/v1/profiling-jobs", headers=other).json()["items"] == []
    assert public.get(f"/v1/profiling-jobs/{job['id']}", headers=mine).json()["status"] == "running"


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/v1/agents", {**NODE, "gpu": "x" * 65}, "/gpu"),
        ("/v1/agents", {**NODE, "gpus_per_node": 2**31}, "/gpus_per_node"),
        ("/v1/agents", {**NODE, "num_nodes": 0}, "/num_nodes"),
        ("/v1/agents", {**NODE, "name": "two\nlines"}, "/name"),
        ("/v1/agents", {**NODE, "gpus": 8}, "/gpus"),
        ("/v1/profiling-jobs", {"budget_s": 1}, "/budget_s"),
        ("/v1/profiling-jobs", {"budget_s": 1e9}, "/budget_s"),
        ("/v1/profiling-jobs", {"framework": "horovod"}, "/framework"),
        ("/v1/profiling-jobs", {"gpu": "A100-SXM-80GB"}, ""),
        ("/v1/agents/{agent}/lease", {}, "/instance"),
        ("/v1/agents/{agent}/heartbeat", {"lease": "l", "parts_done": 2**31}, "/parts_done"),
        ("/v1/agents/{agent}/results", {"lease": "l", "outcome": "measured"}, "/calibration"),
        ("/v1/agents/{agent}/results", {"lease": "l", "outcome": "failed"}, "/error"),
        (
            "/v1/agents/{agent}/results",
            {"lease": "l", "outcome": "measured", "calibration": {**EXAMPLE_CALIBRATION, "gemm": 3}},
            "/calibration/gemm",
        ),
    ],
)
def test_what_is_wrong_is_named(
    public: TestClient, mine: dict[str, str], path: str, body: dict[str, Any], pointer: str
) -> None:
    agent = registered(public, mine)
    answer = public.post(path.format(agent=agent), json=body, headers=mine)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    (entry,) = answer.json()["errors"]
    assert entry["pointer"] == pointer
    assert entry["hint"]


def test_agents_survive_a_restart_of_the_service(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, pool_size=1, log_level="error", seed_examples=False)
    with TestClient(create_app(settings)) as client:
        agent = registered(client, {})
        job = asked_for(client, {})
        lease = leased(client, {}, agent)["lease"]
    with TestClient(create_app(settings)) as client:
        told = client.post(f"/v1/agents/{agent}/heartbeat", json={"lease": lease}).json()
        assert told == {"go_on": True, "status": "running"}
        assert sent(client, {}, agent, lease=lease, outcome="measured", calibration=measured()).status_code == 200
        assert client.get(f"/v1/profiling-jobs/{job['id']}").json()["attempts"] == 1
