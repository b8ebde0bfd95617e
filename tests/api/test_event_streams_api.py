"""Many streams of events at once: each is told everything, and together they ask the database as much as one."""

from __future__ import annotations

import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx2
from sqlalchemy import Engine, event

from app.service.jobs.runner import Kind
from app.settings import Settings
from live_service import listening

READERS = 100


def stream(address: str, plan_id: str) -> socket.socket:
    """A connection on which the events of the plan are sent."""
    parts = urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=30)
    head = f"GET /v1/plans/{plan_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
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
    # Five looks a second, each of at most two statements.
    assert len(statements) <= 10 * seconds + 2
    for text in told:
        assert text.count("event: progress") >= 5
        assert "event: succeeded" in text
        assert text.endswith("0\r\n\r\n"), "the stream breaks off"
