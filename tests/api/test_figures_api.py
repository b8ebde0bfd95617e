"""Who may see the service's figures: who is on its machine, and whoever has a key that may read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.scopes import Scope
from app.service.db.keys import create_key
from app.service.db.migrate import upgrade
from app.service.main import create_app
from app.settings import Settings


@pytest.fixture(scope="module")
def reachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    """A service that other machines can reach; it runs no jobs."""
    settings = Settings(
        host="0.0.0.0", data_dir=tmp_path_factory.mktemp("data"), log_level="error", seed_examples=False
    )
    app = create_app(settings)
    upgrade(app.state.service.engine)
    yield app
    app.state.service.engine.dispose()


@pytest.mark.parametrize(
    ("address", "status"),
    [("127.0.0.1", 200), ("127.9.9.9", 200), ("::1", 200), ("10.0.0.1", 401), ("2001:db8::1", 401), ("localhost.example", 401)],
)  # fmt: skip
def test_beyond_its_machine_they_need_a_key(reachable: FastAPI, address: str, status: int) -> None:
    answer = TestClient(reachable, client=(address, 5)).get("/metrics")
    assert answer.status_code == status
    assert ("meshwright_workers_ready" in answer.text) == (status == 200)


@pytest.mark.parametrize(("scope", "status"), [("read", 200), ("profile", 403)])
def test_the_key_must_be_one_that_may_read(reachable: FastAPI, scope: Scope, status: int) -> None:
    _, secret = create_key(reachable.state.service.engine, tenant="t", name="test", scopes=(scope,))
    answer = TestClient(reachable, client=("10.0.0.1", 5)).get(
        "/metrics", headers={"Authorization": f"Bearer {secret}"}
    )
    assert answer.status_code == status


def test_a_wrong_key_opens_nothing(reachable: FastAPI) -> None:
    answer = TestClient(reachable, client=("10.0.0.1", 5)).get("/metrics", headers={"Authorization": "Bearer mw_wrong"})
    assert answer.status_code == 401
