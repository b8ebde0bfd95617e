"""Bodies that nobody read: they are thrown away before the answer begins, up to a bound and for so long."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest

from app.service.api.unread import UnreadBodies

CHUNK = 1 << 16
LIMIT = 1 << 20


def answered(chunks: int, headers: dict[str, str], *, read: int = 0) -> tuple[list[str], int]:
    """What was sent after an application that reads so many chunks of this many, and how many chunks were taken."""
    taken = 0
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        sent.append("taken")
        return {"type": "http.request", "body": b" " * CHUNK, "more_body": taken < chunks}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        for _ in range(read):
            await receive()
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": raw}
    asyncio.run(UnreadBodies(app, max_body_bytes=LIMIT)(scope, receive, send))
    return sent, taken


@pytest.mark.parametrize("read", [0, 1, 160])
def test_what_is_left_of_a_body_is_taken_before_the_answer_and_not_kept(read: int) -> None:
    tracemalloc.start()
    sent, taken = answered(160, {"transfer-encoding": "chunked"}, read=read)  # 160 chunks of 64 KiB are 10 MiB
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken == 160
    assert sent[-2:] == ["http.response.start", "http.response.body"]
    assert sent.index("http.response.start") == 160
    assert peak_bytes < LIMIT


def test_an_endless_body_is_cut_off() -> None:
    _, taken = answered(10**9, {"content-length": str(10**12)})
    assert taken == 32 * LIMIT // CHUNK + 1  # 32 times the limit, and the chunk that passes it


@pytest.mark.parametrize(
    "headers", [{}, {"content-length": "0"}, {"content-length": "9", "expect": "100-continue"}]
)  # fmt: skip
def test_nothing_is_taken_from_a_client_that_sends_nothing(headers: dict[str, str]) -> None:
    assert answered(1, headers)[1] == 0
