"""The outermost layer of every request: its id, its log line, its figures, and the answer to a defect."""

from __future__ import annotations

import re
import secrets
import time

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.service.api.problems import internal_problem
from app.service.metrics import Metrics

log = structlog.get_logger("meshwright.http")
CLIENT_LEFT = 499
"""Status noted for a request whose sender hung up before it was whole; nobody is answered."""
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Edge:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; anything else passes."""
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
            except Exception:
                log.exception("request failed")
                if status:
                    raise
                await internal_problem(request_id)(scope, receive, send_with_id)
            finally:
                self._note(scope, status=status, seconds=time.perf_counter() - begun_at)

    def _note(self, scope: Scope, *, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "(none)")
        self._metrics.count_request(method=scope["method"], route=route, status=status, seconds=seconds)
        log.info(
            "request", method=scope["method"], path=scope["path"], status=status, milliseconds=round(seconds * 1e3, 2)
        )
