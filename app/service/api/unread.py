"""Bodies that nobody read before their answer is ready: a missing key, a wrong path or an announced size is answered without them.

Such a body is taken from the client and thrown away first, because a server that answers and closes while its client is still sending
makes most clients report a broken pipe instead of the answer.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_DRAINED_BODIES = 32
"""Multiple of the largest body that is accepted: so much is thrown away, and what is longer ends with a broken pipe."""
_DRAIN_S = 5.0


class UnreadBodies:
    """ASGI middleware that takes the rest of a request before its answer begins.

    Args:
        max_body_bytes: the largest body that the service accepts.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._most_bytes = _DRAINED_BODIES * max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; one without a body, and other events, pass through."""
        if scope["type"] != "http" or not _has_body(Request(scope)):
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._most_bytes)

        async def send_after_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                await body.drain()
            await send(message)

        await self._app(scope, body.receive, send_after_body)


def _has_body(request: Request) -> bool:
    # A client that waits to be told to go on sends nothing before that, and is better off with the answer at once.
    if request.headers.get("expect", "").lower() == "100-continue":
        return False
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


class _Body:
    def __init__(self, receive: Receive, most_bytes: int) -> None:
        self._receive = receive
        self._left_bytes = most_bytes
        self._is_complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._left_bytes -= len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)  # neither has a message that the client has left
        return message

    async def drain(self) -> None:
        try:
            async with asyncio.timeout(_DRAIN_S):
                while not self._is_complete and self._left_bytes >= 0:
                    await self.receive()
        except TimeoutError:
            return
