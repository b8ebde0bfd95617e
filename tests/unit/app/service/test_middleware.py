"""The outermost layer: what is noted of a request, and the id that it gets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.requests import ClientDisconnect
from structlog.testing import capture_logs

from app.service.api.middleware import Edge
from app.service.metrics import Metrics


async def answers(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 207, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": b"x"})


async def is_left(_scope: Any, _receive: Any, _send: Any) -> None:
    raise ClientDisconnect


async def is_left_late(scope: Any, receive: Any, send: Any) -> None:
    await answers(scope, receive, send)
    raise ClientDisconnect


async def breaks(_scope: Any, _receive: Any, _send: Any) -> None:
    raise ZeroDivisionError


async def is_cut_off(_scope: Any, _receive: Any, _send: Any) -> None:
    raise asyncio.CancelledError


async def is_cut_off_late(scope: Any, receive: Any, send: Any) -> None:
    await answers(scope, receive, send)
    raise asyncio.CancelledError


async def breaks_late(scope: Any, receive: Any, send: Any) -> None:
    await answers(scope, receive, send)
    raise ZeroDivisionError


def handled(
    app: Callable[..., Any], *, kind: str = "http", request_id: str | None = None
) -> tuple[list[Any], str, list[Any]]:
    """What was sent, the figures, and the log of one request."""
    metrics = Metrics(jobs=dict, workers=lambda: 0)
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    headers = [] if request_id is None else [(b"x-request-id", request_id.encode())]
    scope = {"type": kind, "method": "GET", "path": "/x", "headers": headers, "query_string": b""}
    with capture_logs() as log:
        asyncio.run(Edge(app, metrics=metrics, shown=lambda _request, problem: problem)(scope, receive, send))
    return messages, metrics.text().decode(), log


@pytest.mark.parametrize(
    ("app", "status"), [(answers, 207), (is_left, 499), (is_left_late, 207), (breaks, 500), (is_cut_off, 503)]
)
def test_every_request_is_counted_with_the_status_that_its_sender_saw(app: Any, status: int) -> None:
    """499 is nginx's code for a sender who hung up first."""
    _, figures, log = handled(app)
    assert f'meshwright_http_requests_total{{method="GET",route="(none)",status="{status}"}} 1.0' in figures
    assert log[-1]["status"] == status


def test_an_answer_that_breaks_off_breaks_the_connection_off() -> None:
    with pytest.raises(ZeroDivisionError):
        handled(breaks_late)


def test_whoever_is_cut_off_while_the_service_stops_is_told_so() -> None:
    messages, _, _ = handled(is_cut_off)
    assert messages[0]["status"] == 503
    assert (b"content-type", b"application/problem+json") in messages[0]["headers"]
    assert b"the service is stopping" in messages[1]["body"]
    with pytest.raises(asyncio.CancelledError):  # the answer had begun: it breaks off
        handled(is_cut_off_late)


def test_the_time_of_a_request_is_noted_in_seconds_and_logged_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([10.0, 10.0123456])
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
    _, figures, log = handled(answers)
    assert log[-1]["milliseconds"] == 12.35
    (told,) = [line for line in figures.splitlines() if line.startswith("meshwright_http_request_seconds_sum")]
    assert float(told.rpartition(" ")[2]) == pytest.approx(0.0123456)


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [("a", True), ("A-b_c.9", True), ("x" * 64, True), ("x" * 65, False), ("", False), ("a b", False), ('a"b', False)],
)
def test_a_harmless_id_of_at_most_64_characters_is_kept(given: str, is_kept: bool) -> None:
    messages, _, _ = handled(answers, request_id=given)
    found = dict(messages[0]["headers"])[b"x-request-id"].decode()
    assert (found == given) == is_kept
    assert is_kept or (len(found) == 16 and int(found, 16) >= 0)  # 64 random bits
    assert messages[0]["headers"][0] == (b"a", b"b")


def test_the_events_of_the_servers_life_pass_through() -> None:
    passed: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        passed.append(scope["type"])

    _, figures, log = handled(app, kind="lifespan")
    assert passed == ["lifespan"]
    assert log == []
    assert "meshwright_http_requests_total{" not in figures


def test_a_stream_whose_client_leaves_between_two_events_is_no_failure() -> None:
    """FastAPI hands events on from task to task. The client leaves while one of these tasks waits for the next to take an event."""
    app = FastAPI()

    @app.get("/x", response_class=EventSourceResponse)
    async def events() -> AsyncIterator[ServerSentEvent]:
        for number in range(10):
            yield ServerSentEvent(data=number)

    async def streamed(scope: Any, _receive: Any, send: Any) -> None:
        has_begun = asyncio.Event()

        async def leave() -> Any:
            await has_begun.wait()
            await asyncio.sleep(0.05)
            return {"type": "http.disconnect"}

        async def take_nothing(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.body":
                has_begun.set()
                await asyncio.sleep(10.0)

        await app(scope, leave, take_nothing)

    messages, _, log = handled(streamed)
    assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]
    assert [entry["event"] for entry in log] == ["request"]
    assert log[0]["status"] == 200
