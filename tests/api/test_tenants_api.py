"""Beyond loopback a key is needed, and it opens its own tenant's things only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.service.db.keys import create_key, revoke_key
from app.service.intake.examples import EXAMPLE_CALIBRATION, EXAMPLE_PLAN_ID, example_calibration
from app.service.main import create_app
from app.settings import Settings


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), host="0.0.0.0", pool_size=1, log_level="error")
    with TestClient(create_app(settings)) as client:
        yield client


def key_of(client: TestClient, tenant: str) -> dict[str, str]:
    _, secret = create_key(client.app.state.service.engine, tenant=tenant, name="test")  # type: ignore[attr-defined]
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer"}]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/plans"), ("POST", "/v1/plans"), ("GET", "/v1/plans/x"), ("GET", "/v1/plans/x/ranked/1"),
        ("GET", "/v1/plans/x/events"), ("DELETE", "/v1/plans/x"), ("POST", "/v1/evaluate"),
        ("GET", "/v1/agents"), ("POST", "/v1/agents"), ("POST", "/v1/agents/x/lease"),
        ("POST", "/v1/agents/x/results"), ("GET", "/v1/profiling-jobs"), ("POST", "/v1/profiling-jobs"),
        ("DELETE", "/v1/profiling-jobs/x"), ("GET", "/v1/calibrations"), ("POST", "/v1/calibrations"), ("GET", "/v1/calibrations/x"),
    ],
)  # fmt: skip
def test_without_a_valid_key_nothing_is_open(
    public: TestClient, method: str, path: str, headers: dict[str, str]
) -> None:
    response = public.request(method, path, headers=headers, json={} if method == "POST" else None)
    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/healthz", "/docs", "/openapi.json", "/v1/presets/gpus"])
def test_what_shows_nobodys_data_needs_no_key(public: TestClient, path: str) -> None:
    assert public.get(path).status_code == 200


def test_a_wrong_key_is_refused_on_loopback_too(client: TestClient) -> None:
    assert client.get("/v1/plans", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_tenants_never_see_one_anothers_plans(public: TestClient, asked: dict[str, Any]) -> None:
    alice, bob = key_of(public, "alice"), key_of(public, "bob")
    mine = public.post("/v1/plans", json=asked, headers=alice).json()["id"]
    for path in ("", "/ranked/1", "/events"):
        assert public.get(f"/v1/plans/{mine}{path}", headers=alice).status_code == 200
        assert public.get(f"/v1/plans/{mine}{path}", headers=bob).status_code == 404
    assert public.delete(f"/v1/plans/{mine}", headers=bob).status_code == 404
    listed = [entry["id"] for entry in public.get("/v1/plans", headers=bob).json()["items"]]
    assert mine not in listed
    theirs = public.post("/v1/plans", json=asked, headers=bob).json()["id"]
    assert theirs != mine, "the same digest of another tenant is another plan"


def test_tenants_never_see_one_anothers_calibrations(public: TestClient, asked: dict[str, Any]) -> None:
    alice, bob = key_of(public, "alice"), key_of(public, "bob")
    uploaded = public.post("/v1/calibrations", json={**EXAMPLE_CALIBRATION, "name": "of alice"}, headers=alice)
    assert uploaded.status_code == 201, uploaded.text
    mine = uploaded.json()["id"]
    assert public.get(f"/v1/calibrations/{mine}", headers=alice).status_code == 200
    assert public.get(f"/v1/calibrations/{mine}", headers=bob).status_code == 404
    assert mine not in [entry["id"] for entry in public.get("/v1/calibrations", headers=bob).json()["items"]]
    asked["cluster"] = {**asked["cluster"], "calibration": mine}
    assert public.post("/v1/plans", json=asked, headers=alice).status_code == 201
    refused = public.post("/v1/plans", json=asked, headers=bob)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/cluster/calibration")


def test_every_tenant_has_the_examples(public: TestClient) -> None:
    carol = key_of(public, "carol")
    assert public.get(f"/v1/plans/{EXAMPLE_PLAN_ID}", headers=carol).status_code == 200
    assert public.get(f"/v1/calibrations/{example_calibration().id}", headers=carol).status_code == 200


def test_a_revoked_key_opens_nothing(tmp_path: Path) -> None:
    chosen = {"host": "0.0.0.0", "pool_size": 1, "log_level": "error", "seed_examples": False, "key_memory_s": 0}
    settings = Settings(data_dir=tmp_path, **chosen)
    with TestClient(create_app(settings)) as client:
        engine = client.app.state.service.engine  # type: ignore[attr-defined]
        key, secret = create_key(engine, tenant="a", name="old")
        headers = {"Authorization": f"Bearer {secret}"}
        assert client.get("/v1/plans", headers=headers).status_code == 200
        revoke_key(engine, key.id)
        assert client.get("/v1/plans", headers=headers).status_code == 401


@pytest.mark.parametrize(
    ("host", "is_open"),
    [
        ("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.3.2.1", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False),
    ],
)  # fmt: skip
def test_only_loopback_is_open(host: str, is_open: bool) -> None:
    assert Settings(host=host).is_open is is_open
