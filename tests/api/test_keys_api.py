"""Keys over HTTP: made by administrators, shown once, revoked within seconds; and what each scope opens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient

from app.scopes import SCOPES
from app.service.access import NEEDED, require_guarded
from app.service.api.key_documents import KeyPage, NewKey
from app.service.auth import principal_of
from app.service.db.keys import create_key, revoke_key
from app.service.db.migrate import upgrade
from app.service.main import create_app
from app.settings import Settings


def service(folder: Path, **settings: Any) -> TestClient:
    """A service that is not started: what keys open needs tables and no worker."""
    chosen = {"host": "0.0.0.0", "log_level": "error", "seed_examples": False, **settings}
    app = create_app(Settings(data_dir=folder, **chosen))
    upgrade(app.state.service.engine)
    return TestClient(app)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    client = service(tmp_path_factory.mktemp("data"))
    yield client
    client.app.state.service.engine.dispose()  # type: ignore[attr-defined]


def holder(client: TestClient, tenant: str, *scopes: str, **more: Any) -> dict[str, str]:
    """Headers that show a new key."""
    engine = client.app.state.service.engine  # type: ignore[attr-defined]
    return {"Authorization": f"Bearer {create_key(engine, tenant=tenant, name='test', scopes=scopes, **more)[1]}"}


def test_an_administrator_makes_lists_and_revokes_keys(guarded: TestClient) -> None:
    admin = holder(guarded, "makes", "admin")
    made = guarded.post(
        "/v1/keys", json={"name": "ci", "scopes": ["plan", "read"], "expires_in_s": 3600}, headers=admin
    )
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    key = NewKey.model_validate_json(made.text)
    assert (key.tenant, key.name, key.scopes) == ("makes", "ci", ["read", "plan"])
    assert datetime.fromisoformat(key.expires_at or "") - datetime.fromisoformat(key.created_at) == timedelta(hours=1)
    theirs = {"Authorization": f"Bearer {key.key}"}
    assert guarded.get("/v1/plans", headers=theirs).status_code == 200
    listed = guarded.get("/v1/keys", headers=admin)
    assert key.key not in listed.text, "a key is shown once"
    (entry, own) = KeyPage.model_validate_json(listed.text).items
    assert (entry.id, entry.revoked_at, own.scopes) == (key.id, None, ["admin"])
    assert entry.last_used_at is not None
    assert guarded.delete(f"/v1/keys/{key.id}", headers=admin).status_code == 204
    assert guarded.get("/v1/plans", headers=theirs).status_code == 401, "here it is revoked at once"
    assert guarded.delete(f"/v1/keys/{key.id}", headers=admin).status_code == 404
    assert guarded.get("/v1/keys", headers=admin).json()["items"][0]["revoked_at"] is not None


def test_a_key_has_the_usual_scopes_unless_it_is_said(guarded: TestClient) -> None:
    made = guarded.post("/v1/keys", json={"name": "laptop"}, headers=holder(guarded, "usual", "admin")).json()
    assert (made["scopes"], made["expires_at"]) == (["read", "plan", "profile"], None)


def test_pages_of_keys_follow_one_another(guarded: TestClient) -> None:
    admin = holder(guarded, "pages", "admin")
    names = [f"key {number}" for number in range(4)]
    for name in names:
        assert guarded.post("/v1/keys", json={"name": name}, headers=admin).status_code == 201
    found, cursor = [], None
    for _ in range(3):
        page = guarded.get(
            "/v1/keys", params={"limit": 2, **({"cursor": cursor} if cursor else {})}, headers=admin
        ).json()
        found += [entry["name"] for entry in page["items"]]
        cursor = page["next_cursor"]
    assert (found, cursor) == ([*reversed(names), "test"], None)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/name"), ({"name": ""}, "/name"), ({"name": "x" * 81}, "/name"), ({"name": "a\nb"}, "/name"), ({"name": 1}, "/name"),
        ({"name": "a", "scopes": []}, "/scopes"), ({"name": "a", "scopes": ["root"]}, "/scopes/0"),
        ({"name": "a", "scopes": "read"}, "/scopes"), ({"name": "a", "expires_in_s": 0}, "/expires_in_s"),
        ({"name": "a", "expires_in_s": 1e-9}, "/expires_in_s"),
        ({"name": "a", "expires_in_s": 1e300}, "/expires_in_s"), ({"name": "a", "expires_in_s": "1h"}, "/expires_in_s"),
        ({"name": "a", "tenant": "other"}, "/tenant"), ([], ""),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_made_is_refused(guarded: TestClient, body: object, pointer: str) -> None:
    admin = holder(guarded, "refused", "admin")
    answer = guarded.post("/v1/keys", json=body, headers=admin)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert answer.json()["errors"][0]["hint"]


def test_the_scope_that_is_missing_is_named(guarded: TestClient) -> None:
    answer = guarded.post("/v1/plans", json={}, headers=holder(guarded, "named", "read", "profile"))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert answer.json()["detail"] == "this call needs the scope plan, and this key has only read and profile"
    assert "--scope plan" in answer.json()["hint"]


def test_pages_want_scopes_too(guarded: TestClient) -> None:
    shown = {"meshwright_key": holder(guarded, "pages-too", "read")["Authorization"].removeprefix("Bearer ")}
    own = {"Accept": "text/html", "Origin": "http://testserver"}
    guarded.cookies.update(shown)
    try:
        assert guarded.get("/plans", headers=own).status_code == 200
        assert guarded.get("/", headers=own).status_code == 200
        refused = guarded.post("/plans", data={}, headers=own)
        assert refused.status_code == 403
        assert "the scope plan" in refused.text
        assert "Its scopes: read." in guarded.get("/key", headers=own).text
    finally:
        guarded.cookies.clear()


def test_an_expired_key_opens_nothing_however_recently_it_was_used(tmp_path: Path) -> None:
    client = service(tmp_path, key_memory_s=60)
    short = holder(client, "a", "read", expires_in_s=1.5)
    assert client.get("/v1/plans", headers=short).status_code == 200
    time.sleep(1.55)
    assert client.get("/v1/plans", headers=short).status_code == 401


def test_a_key_revoked_elsewhere_is_refused_when_it_is_next_looked_up(tmp_path: Path) -> None:
    """A service remembers a key for as long as its setting says, five seconds by default, and no longer."""
    assert Settings.model_fields["key_memory_s"].default == 5.0
    client = service(tmp_path, key_memory_s=0.5)
    engine = client.app.state.service.engine  # type: ignore[attr-defined]
    key, secret = create_key(engine, tenant="a", name="lost")
    shown = {"Authorization": f"Bearer {secret}"}
    assert client.get("/v1/plans", headers=shown).status_code == 200
    revoke_key(engine, key.id)  # as another process does
    time.sleep(0.55)
    assert client.get("/v1/plans", headers=shown).status_code == 401


def test_on_loopback_everybody_manages_the_local_keys(tmp_path: Path) -> None:
    client = service(tmp_path, host="127.0.0.1")
    made = client.post("/v1/keys", json={"name": "mine", "scopes": ["read"]}).json()
    assert made["tenant"] == "local"
    shown = {"Authorization": f"Bearer {made['key']}"}
    assert client.get("/v1/plans", headers=shown).status_code == 200
    assert client.get("/v1/keys", headers=shown).status_code == 403, "a key that is shown is held to its scopes"
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 204


def router_with(path: str, *, asks: bool) -> APIRouter:
    router = APIRouter()

    @router.get(path, dependencies=[Depends(principal_of)] if asks else [])
    def answer() -> None:
        pass

    return router


def test_a_route_without_a_scope_cannot_be_added() -> None:
    with pytest.raises(KeyError, match="GET /v1/forgotten"):
        require_guarded(router_with("/v1/forgotten", asks=True), frozenset({principal_of}))
    with pytest.raises(AssertionError, match="asks nobody for a key"):
        require_guarded(router_with("/v1/plans", asks=False), frozenset({principal_of}))
    require_guarded(router_with("/v1/plans", asks=True), frozenset({principal_of}))


def test_every_scope_opens_something_and_no_call_is_listed_that_is_not_there(guarded: TestClient) -> None:
    assert set(NEEDED.values()) == {*SCOPES, None}
    application = guarded.app
    assert isinstance(application, FastAPI)
    documented = {
        f"{method.upper()} {path}" for path, methods in application.openapi()["paths"].items() for method in methods
    }
    assert {call for call in NEEDED if " /v1/" in call} == {call for call in documented if " /v1/" in call}
