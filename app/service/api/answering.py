"""Answers of the answering processes as routes await and send them; they are given up as soon as their client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from app.service.answering.pool import Answer
from app.service.parts import Service

T = TypeVar("T")
Function = Callable[..., Iterator[Any]]
LINES = "application/x-ndjson"


async def computed(request: Request, service: Service, tenant: str, function: Function, *args: Any) -> list[Any]:
    """All parts of what this function yields, computed outside of this process.

    Raises:
        ClientDisconnect: the client left; the computation was ended.
        RelayedError: what the function raised.
        MeshwrightError: why it could not be computed.
    """
    return await while_connected(request, service.answering.all_parts(tenant, function, *args))


async def streamed(
    request: Request, service: Service, tenant: str, function: Function, *args: Any, media_type: str
) -> StreamingResponse:
    """A response that is sent while it is computed, no faster than the client reads. Errors before its first part are raised.

    Raises:
        ClientDisconnect, RelayedError, MeshwrightError: as in `computed`.
    """
    answer = await while_connected(request, service.answering.answer(tenant, function, *args))
    try:
        first = await while_connected(request, anext(answer, None))
    except BaseException:
        answer.release()
        raise
    return _Streamed(answer, first, media_type=media_type)


class _Streamed(StreamingResponse):
    """Frees the answer's process when the response has been sent, or cannot be sent any more."""

    def __init__(self, answer: Answer, first: Any, *, media_type: str) -> None:
        super().__init__(_following(answer, first), media_type=media_type)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.release()


async def _following(answer: Answer, first: Any) -> AsyncIterator[Any]:
    if first is not None:
        yield first
        async for part in answer:
            yield part


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of this work, which is cancelled when the client of the request leaves. The body has been read before.

    Raises:
        ClientDisconnect: it left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
