"""Many streams of events at once: each is told everything, and together they ask the database as much as one."""

from __future__ import annotations

import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx2
from sqlalchemy import Engine, event

from app.service.db.engine import build_engine
from app.service.db.keys import create_key, revoke_key
from app.service.jobs.runner import Kind
from app.settings import Settings
from live_service import listening

READERS = 100


def stream(address: str, plan_id: str, *, what: str = "v1/plans/{}/events", shown: str = "") -> socket.socket:
    """A connection on which the events of the plan are sent, or those of its page. `shown` is a line of the request's head."""
    parts = urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=30)
    lines = [
        f"GET /{what.format(plan_id)} HTTP/1.1",
        "Host: 127.0.0.1",
        "Connection: close",
        *([shown] if shown else []),
    ]
    head = "\r\n".join([*lines, "", ""])
    connection.sendall(head.encode())
    return connection


def everything(connection: socket.socket) -> str:
    """All that is sent until the server closes the connection."""
    with connection:
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


def test_a_hundred_streams_ask_the_database_no_more_than_one(
    slow_settings: Settings, slow_kinds: dict[str, Kind], asked: dict[str, Any]
) -> None:
    """A job that reports every 0.2 s for three seconds. A reader that looks for itself makes five statements a second."""
    statements = list[str]()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and "job_events" in statement:
            statements.append(statement)

    with listening(slow_settings, kinds=slow_kinds) as address:
        plan_id = httpx2.post(f"{address}/v1/plans", json={**asked, "seed": 30, "wait_s": 0}).json()["id"]
        connections = [stream(address, plan_id) for _ in range(READERS)]
        event.listen(Engine, "before_cursor_execute", note)
        try:
            begun_at = time.monotonic()
            told = [everything(connection) for connection in connections]
            seconds = time.monotonic() - begun_at
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    # Five looks a second, each of at most two statements, and room for a busy machine; a hundred readers that look for
    # themselves make more than a thousand.
    assert len(statements) <= 3 * (10 * seconds + 2)
    for text in told:
        assert text.count("event: progress") >= 5
        assert "event: succeeded" in text
        assert text.endswith("0\r\n\r\n"), "the stream breaks off"


def test_a_stream_ends_soon_after_its_key_is_revoked_or_expires(
    slow_settings: Settings, slow_kinds: dict[str, Kind], asked: dict[str, Any]
) -> None:
    """A job that outlasts them all. The service looks at a key again when it has remembered it for 0.2 s, and a stream every second."""
    settings = slow_settings.model_copy(update={"key_memory_s": 0.2})
    with listening(settings, kinds=slow_kinds) as address:
        engine = build_engine(settings.url)  # as another process has it
        (lost, lost_secret), (_, kept_secret), (_, brief_secret) = (
            create_key(engine, tenant="a", name="test", expires_in_s=life) for life in (None, None, 4.0)
        )
        headers = {"Authorization": f"Bearer {kept_secret}"}
        body = {**asked, "seed": 600, "wait_s": 0}
        plan_id = httpx2.post(f"{address}/v1/plans", json=body, headers=headers).json()["id"]
        kept = stream(address, plan_id, shown=f"Authorization: Bearer {kept_secret}")
        ended = [
            stream(address, plan_id, shown=f"Authorization: Bearer {lost_secret}"),
            stream(address, plan_id, shown=f"Authorization: Bearer {brief_secret}"),
            *(
                stream(address, plan_id, what="plans/{}/progress", shown=f"Cookie: meshwright_key={secret}")
                for secret in (lost_secret, brief_secret)
            ),
        ]
        begun = [connection.recv(1 << 16).decode() for connection in ended]
        assert all(text.startswith("HTTP/1.1 200") for text in begun)
        revoke_key(engine, lost.id)
        told = [text + everything(connection) for text, connection in zip(begun, ended, strict=True)]
        state = httpx2.get(f"{address}/v1/plans/{plan_id}", headers=headers).json()["status"]
        assert state == "running", "they ended because the job did"
        for text in told:
            assert "event: succeeded" not in text
            assert "event: finished" not in text
            assert ": the key is no longer valid" in text
            assert text.endswith("0\r\n\r\n"), "the stream breaks off"
        httpx2.delete(f"{address}/v1/plans/{plan_id}", headers=headers)
        assert "event: cancelled" in everything(kept)
        engine.dispose()
