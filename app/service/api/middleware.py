"""The outermost layer around every request: its id, its log line, its figures, and the answer when the program is at fault.

It is plain ASGI and not Starlette's `BaseHTTPMiddleware`, which runs the application in a task of its own, so that context
variables set inside are lost outside.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time

import anyio
import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import UnavailableError
from app.service.api.problems import Shown, internal_problem, problem_response
from app.service.metrics import Metrics

log = structlog.get_logger("meshwright.http")
CLIENT_LEFT = 499
"""Status noted for a request whose sender hung up before it was complete; nobody is there to be answered. The code is nginx's."""
# Ids of a proxy are kept, so that its log and ours can be joined. The pattern keeps line breaks and quotes out of both.
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Edge:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, shown: Shown) -> None:
        self._app = app
        self._metrics = metrics
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; other events, such as those of the server's life, pass through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Request(scope).headers.get("x-request-id", "")
        request_id = given if _GIVEN_ID.fullmatch(given) else secrets.token_hex(8)
        scope["request_id"] = request_id
        status = 0
        begun_at = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            except ClientDisconnect:
                status = status or CLIENT_LEFT
            except asyncio.CancelledError:
                # The server ends whatever is not done some seconds after it was told to stop, and would answer in its own words.
                if status:
                    raise
                stopping = UnavailableError("the service is stopping", hint="Try again in a moment.")
                answer = self._shown(Request(scope), problem_response(stopping, request_id=request_id))
                await answer(scope, receive, send_with_id)
            except Exception as error:
                if _is_left_stream(error):
                    status = status or CLIENT_LEFT
                    return
                log.exception("request failed")
                # Once the status line is out, no problem document can follow it: the server has to break the connection off.
                if status:
                    raise
                answer = self._shown(Request(scope), internal_problem(request_id))
                await answer(scope, receive, send_with_id)
            finally:
                self._note(scope, status=status, seconds=time.perf_counter() - begun_at)

    def _note(self, scope: Scope, *, status: int, seconds: float) -> None:
        # The template and not the path: a label per id would grow without bound.
        route = getattr(scope.get("route"), "path", "(none)")
        self._metrics.count_request(method=scope["method"], route=route, status=status, seconds=seconds)
        log.info(
            "request", method=scope["method"], path=scope["path"], status=status, milliseconds=round(seconds * 1e3, 2)
        )


def _is_left_stream(error: Exception) -> bool:
    # Where a client leaves a stream of events, FastAPI closes the receiving end of its queue while its own task may be sending.
    return isinstance(error, ExceptionGroup) and error.split(anyio.BrokenResourceError)[1] is None
