"""Two tenants at every route: generated from the OpenAPI document and the table of scopes, so that a new route cannot be left out.

A route whose path names an object that this module cannot make fails the test until `OBJECTS` says how to make one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.scopes import SCOPES
from app.service.access import NEEDED
from app.service.api.agent_schemas import EXAMPLE_LEASE_REQUEST, EXAMPLE_REGISTRATION
from app.service.db.keys import create_key
from app.service.intake.examples import EXAMPLE_CALIBRATION, EXAMPLE_LEASE
from app.service.main import create_app
from app.settings import Settings
from planner.schemas.observation import EXAMPLE_OBSERVATION_REQUEST
from planner.schemas.row import EXAMPLE_ROW
from tests.api.test_corrections_api import TRIALS, measured

OPEN = {
    "GET /healthz", "GET /readyz",
    "GET /v1/presets/models", "GET /v1/presets/gpus", "GET /v1/presets/clusters", "GET /v1/presets/frameworks",
}  # fmt: skip
"""The only calls that want no key: they show nobody's data."""
SUMS = {"GET /metrics"}
"""Calls that hold no object of anybody, only how many there are of all together."""
OPEN_PAGES = {"GET /docs", "GET /key", "POST /key", "POST /key/forget"}
OTHER_PARAMETERS = {"rank": "1", "framework": "megatron"}
"""Parameters of paths that name no object of a tenant."""
WRITES = ("POST", "DELETE", "PUT", "PATCH")
PAGE = {"Accept": "text/html", "Origin": "http://testserver"}


@dataclass
class Tenant:
    """A tenant with one object of each kind."""

    name: str
    headers: dict[str, str]
    key: str
    ids: dict[str, str] = field(default_factory=dict)
    inside: dict[str, str] = field(default_factory=dict)
    """What takes the place of texts of the examples' bodies: names that no path and no list holds."""


def stored(path: str, body: Mapping[str, Any]) -> Callable[[TestClient, Tenant], str]:
    """Makes an object by posting it."""

    def make(client: TestClient, tenant: Tenant) -> str:
        answer = client.post(
            path, json={**body, "name": f"of {tenant.name}"} if "name" in body else body, headers=tenant.headers
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    return make


def leased(client: TestClient, tenant: Tenant) -> str:
    """Makes a profiling job that the tenant's agent has begun."""
    agent = tenant.ids["agent_id"]
    job = client.post("/v1/profiling-jobs", json={"agent": agent}, headers=tenant.headers).json()
    given = client.post(f"/v1/agents/{agent}/lease", json=EXAMPLE_LEASE_REQUEST, headers=tenant.headers).json()["job"]
    assert given["id"] == job["id"]
    tenant.inside[EXAMPLE_LEASE] = given["lease"]
    return str(job["id"])


def tuned(client: TestClient, tenant: Tenant) -> str:
    """Makes a tuning of the tenant's plan that was cancelled before an agent came: the streams of one that waits do not end."""
    body = {"plan_id": tenant.ids["plan_id"], "agent": tenant.ids["agent_id"]}
    answer = client.post("/v1/tunings", json=body, headers=tenant.headers)
    assert answer.status_code == 202, answer.text
    tuning = str(answer.json()["id"])
    assert client.delete(f"/v1/tunings/{tuning}", headers=tenant.headers).status_code == 202
    return tuning


def observed(client: TestClient, tenant: Tenant) -> str:
    """Makes an observation of a run that nobody else has had: equal ones have equal ids, for each tenant its own."""
    row = {**EXAMPLE_ROW, "id": f"of {tenant.name}"}
    return stored("/v1/observations", {**EXAMPLE_OBSERVATION_REQUEST, "row": row})(client, tenant)


GPU = {
    "memory_gib": 140, "peak_tflops": {"bf16": 989}, "memory_bandwidth_gb_per_s": 4800, "nvlink_gb_per_s": 450,
}  # fmt: skip


def taught(client: TestClient, tenant: Tenant) -> str:
    """Makes a correction, from two measured plans of the tenant. Ids name term and scope, so that tenants differ by their GPUs."""
    gpu = f"H200 of {tenant.name}"
    trials = [
        trial | {"row": trial["row"] | {"cluster": trial["row"]["cluster"] | {"gpu": GPU | {"name": gpu}}}}
        for trial in TRIALS[:2]
    ]
    measured(client, tenant.name, trials)
    items = client.get("/v1/corrections", headers=tenant.headers).json()["items"]
    return str(next(each["id"] for each in items if each["gpu"] == gpu))


PLAN = {
    "model": {"preset": "llama-3.2-1b"},
    "cluster": {"gpu": "H100-SXM-80GB", "num_nodes": 1, "gpus_per_node": 8},
    "training": {"seq_length": 2048, "global_batch_size": 8, "precision": "bf16", "framework": "megatron"},
    "top_k": 2,
}
OBJECTS: Mapping[str, Callable[[TestClient, Tenant], str]] = {
    "plan_id": stored("/v1/plans", PLAN),
    "calibration_id": stored("/v1/calibrations", EXAMPLE_CALIBRATION),
    "observation_id": observed,
    "agent_id": stored("/v1/agents", EXAMPLE_REGISTRATION),
    "job_id": leased,
    "tuning_id": tuned,
    "correction_id": taught,
    "key_id": stored("/v1/keys", {"name": "", "scopes": ["read"]}),
}
"""How an object is made whose id a parameter of a path takes."""
SAME = {"name": "calibration_id"}
"""Parameters of pages that mean what another parameter of the API means."""


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=folder, host="0.0.0.0", pool_size=1, log_level="error", seed_examples=False)
    with TestClient(create_app(settings), follow_redirects=False) as client:
        yield client


def key_of(client: TestClient, tenant: str, scopes: tuple[Any, ...] = SCOPES) -> str:
    engine = client.app.state.service.engine  # type: ignore[attr-defined]
    return create_key(engine, tenant=tenant, name="test", scopes=scopes)[1]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def tenants(public: TestClient, request: pytest.FixtureRequest) -> tuple[Tenant, Tenant]:
    """Two tenants that no other test knows, each with one object of every kind."""
    found = []
    for name in ("alice", "bob"):
        unique = f"{name} of {request.node.name}"[:60]
        key = key_of(public, unique)
        tenant = Tenant(unique, bearer(key), key)
        for parameter, make in OBJECTS.items():
            tenant.ids[parameter] = make(public, tenant)
        found.append(tenant)
    return found[0], found[1]


def operations(client: TestClient) -> dict[str, dict[str, Any]]:
    """The operations of the OpenAPI document by method and path."""
    application = client.app
    assert isinstance(application, FastAPI)
    return {
        f"{method.upper()} {path}": operation
        for path, methods in application.openapi()["paths"].items()
        for method, operation in methods.items()
    }


def parameters(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def owned(path: str) -> bool:
    """Whether the path names an object. Fails for a parameter that is neither an object's nor known to be something else."""
    names = [SAME.get(name, name) for name in parameters(path)]
    unknown = [name for name in names if name not in OBJECTS and name not in OTHER_PARAMETERS]
    assert not unknown, f"say in OBJECTS how to make what {unknown} of {path} names"
    return any(name in OBJECTS for name in names)


def filled(path: str, ids: Mapping[str, str]) -> str:
    for name in parameters(path):
        path = path.replace(f"{{{name}}}", {**OTHER_PARAMETERS, **ids}[SAME.get(name, name)])
    return path


def body_of(operation: Mapping[str, Any]) -> Any:
    """The first example of the body."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return None if content is None else next(iter(content["examples"].values()))["value"]


def sent(client: TestClient, call: str, operation: Mapping[str, Any], of: Tenant, headers: dict[str, str]) -> Any:
    method, _, path = call.partition(" ")
    body = json.dumps(body_of(operation))
    for shown, own in of.inside.items():
        body = body.replace(shown, own)
    return client.request(method, filled(path, of.ids), json=json.loads(body), headers=headers)


def test_every_call_with_anothers_ids_is_404_and_changes_nothing(
    public: TestClient, tenants: tuple[Tenant, Tenant]
) -> None:
    alice, bob = tenants
    calls = {call: each for call, each in operations(public).items() if owned(call.partition(" ")[2])}
    assert len(calls) >= 8
    found = {call: sent(public, call, each, alice, bob.headers) for call, each in calls.items()}
    assert {call: (a.status_code, '"not-found"' in a.text) for call, a in found.items()} == dict.fromkeys(
        calls, (404, True)
    )
    heads = {f"HEAD {call.removeprefix('GET ')}": each for call, each in calls.items() if call.startswith("GET ")}
    assert {sent(public, call, each, alice, bob.headers).status_code for call, each in heads.items()} == {404}
    # Afterwards the owner's calls succeed, those that remove the objects last: nothing of them was missing before.
    for call, each in sorted(calls.items(), key=lambda item: item[0].startswith("DELETE")):
        answer = sent(public, call, each, alice, alice.headers)
        assert answer.status_code < 300, (call, answer.text)


def test_every_list_holds_ones_own_only(public: TestClient, tenants: tuple[Tenant, Tenant]) -> None:
    alice, bob = tenants
    lists = [
        call
        for call in operations(public)
        if call.startswith("GET ") and call not in OPEN | SUMS and not owned(call.partition(" ")[2])
    ]
    assert len(lists) >= 3
    listed = set()
    for call in lists:
        path = call.partition(" ")[2]
        for mine, others in ((alice, bob), (bob, alice)):
            answer = public.get(path, params={"limit": 100}, headers=mine.headers)
            assert answer.status_code == 200, (call, answer.text)
            held = {identifier for identifier in mine.ids.values() if f'"{identifier}"' in answer.text}
            # The digest of a calibration names its content, and these differ by their names.
            assert not [each for each in others.ids.values() if f'"{each}"' in answer.text], call
            assert held, f"{call} lists none of {mine.ids}: then it could not show another's either"
            listed |= held
    assert listed == {*alice.ids.values(), *bob.ids.values()}, "every kind of object is listed somewhere"


def test_every_call_wants_a_key(public: TestClient, tenants: tuple[Tenant, Tenant]) -> None:
    wrong = (bearer("mw_wrong"), {"Authorization": "Basic x"})
    found = {
        call: tuple(sent(public, call, each, tenants[0], headers).status_code for headers in ({}, *wrong))
        for call, each in operations(public).items()
        if call not in OPEN
    }
    assert len(found) >= 15
    assert found == dict.fromkeys(found, (401, 401, 401))
    assert {call for call, scope in NEEDED.items() if scope is None} == OPEN | OPEN_PAGES


def test_every_call_wants_its_scope(public: TestClient, tenants: tuple[Tenant, Tenant]) -> None:
    """A key of the same tenant with every scope but the one that is needed."""
    alice = tenants[0]
    without = {
        scope: bearer(key_of(public, alice.name, tuple(each for each in SCOPES if each != scope))) for scope in SCOPES
    }
    for call, each in operations(public).items():
        if call in OPEN:
            continue
        needed = NEEDED[call]
        assert needed is not None
        assert call.startswith("GET ") or needed != "read", f"{call} changes something"
        answer = sent(public, call, each, alice, without[needed])
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), call
        assert f"needs the scope {needed}" in answer.json()["detail"]


def test_every_page_is_held_to_tenant_key_and_scope(public: TestClient, tenants: tuple[Tenant, Tenant]) -> None:
    alice, bob = tenants
    pages = {
        call: scope for call, scope in NEEDED.items() if "/v1/" not in call and call not in OPEN | SUMS | OPEN_PAGES
    }
    assert len(pages) >= 15

    def asked(call: str, key: str | None) -> int:
        method, _, path = call.partition(" ")
        public.cookies.clear()
        if key is not None:
            public.cookies.set("meshwright_key", key)
        try:
            answer = public.request(
                method, filled(path, alice.ids), headers=PAGE, data={"tp": "1"} if method in WRITES else None
            )
        finally:
            public.cookies.clear()
        return int(answer.status_code)

    assert {call: asked(call, None) for call in pages} == dict.fromkeys(pages, 401)
    lacking = {scope: key_of(public, alice.name, tuple(each for each in SCOPES if each != scope)) for scope in SCOPES}
    assert {call: asked(call, lacking[scope or ""]) for call, scope in pages.items()} == dict.fromkeys(pages, 403)
    of_objects = [call for call in pages if owned(call.partition(" ")[2])]
    assert {call: asked(call, bob.key) for call in of_objects} == dict.fromkeys(of_objects, 404)
    for call in of_objects:
        assert asked(call, alice.key) < 400, call


@pytest.mark.parametrize("path", ["/v1/plans", "/v1/evaluate", "/v1/judge"])
def test_no_body_names_anothers_calibration(public: TestClient, tenants: tuple[Tenant, Tenant], path: str) -> None:
    alice, bob = tenants
    body = body_of(operations(public)[f"POST {path}"])
    asked = {**body, "cluster": {**body["cluster"], "calibration": alice.ids["calibration_id"]}}
    theirs, own = (public.post(path, json=asked, headers=tenant.headers) for tenant in (bob, alice))
    # A row that cannot be priced is answered with its verdict and not with an error.
    assert theirs.status_code == 422 or theirs.json()["verdict"] == "invalid", theirs.text
    assert "calibration" in theirs.text
    assert own.status_code in {200, 201, 202}, own.text
    assert own.json().get("verdict") != "invalid"


@pytest.mark.parametrize("named", ["plan_id", "agent"])
def test_no_tuning_names_anothers_plan_or_agent(public: TestClient, tenants: tuple[Tenant, Tenant], named: str) -> None:
    alice, bob = tenants
    body = {"plan_id": bob.ids["plan_id"], "agent": bob.ids["agent_id"]}
    theirs = {**body, named: alice.ids["plan_id" if named == "plan_id" else "agent_id"]}
    refused, own = (public.post("/v1/tunings", json=each, headers=bob.headers) for each in (theirs, body))
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, f"/{named}")
    assert own.status_code == 202


def test_an_idempotency_key_is_its_tenants_own(public: TestClient, tenants: tuple[Tenant, Tenant]) -> None:
    plans = {}
    for tenant, top_k in zip(tenants, (2, 3), strict=True):
        headers = {**tenant.headers, "Idempotency-Key": "the same"}
        answer = public.post("/v1/plans", json={**PLAN, "top_k": top_k, "wait_s": 0}, headers=headers)
        assert answer.status_code in {201, 202}, answer.text
        plans[tenant.name] = answer.json()["id"]
    assert len(set(plans.values())) == 2
