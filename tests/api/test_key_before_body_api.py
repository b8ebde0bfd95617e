"""Whoever has no key is told so before anything of the body is read: a body that nobody could parse changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from app.service.main import create_app
from app.settings import Settings


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """Somebody without a key, at a service that others can reach. It has not begun to work: there is no database to ask."""
    settings = Settings(host="0.0.0.0", data_dir=tmp_path_factory.mktemp("data"), log_level="error")
    return TestClient(create_app(settings), raise_server_exceptions=False)


@pytest.mark.parametrize("media_type", ["application/json", "text/plain", ""])
@pytest.mark.parametrize("body", [b"{", b"x" * 2_000_000], ids=["no JSON", "too large"])
def test_every_call_with_a_body_asks_for_the_key_first(stranger: TestClient, body: bytes, media_type: str) -> None:
    paths = [
        path
        for path, item in stranger.app.openapi()["paths"].items()  # type: ignore[attr-defined]
        if "requestBody" in item.get("post", {})
    ]
    assert len(paths) >= 4
    answers = {path: stranger.post(path, content=body, headers={"Content-Type": media_type}) for path in paths}
    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(paths, 401)


@pytest.mark.parametrize("path", ["/plans", "/web/check", "/plans/plan-1/why-not"])
def test_forms_ask_for_the_key_first(stranger: TestClient, path: str) -> None:
    headers = {"Content-Type": "text/plain", "Origin": "http://testserver"}
    assert stranger.post(path, content=b"x" * 2_000_000, headers=headers).status_code == 401


def test_nothing_was_stored_or_started(stranger: TestClient) -> None:
    folder: Path = stranger.app.state.service.settings.data_dir  # type: ignore[attr-defined]
    assert list(folder.iterdir()) == []
