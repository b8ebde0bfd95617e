"""What every path answers besides its own methods: HEAD wherever there is a GET, OPTIONS, and the methods that it supports."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OWN = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed_methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Methods that the path of this request supports, as `Allow` lists them; empty where there is nothing at the path."""
    # Within what is mounted the root is where it is mounted.
    whole = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    # The router itself looks at the first route of the path only, and several routes may share one.
    found = {
        method
        for method in _OWN
        for route in routes
        if route.matches({**whole, "method": method})[0] is Match.FULL
        # What is mounted are files.
        and (method == "GET" or not isinstance(route, Mount))
    }
    if not found:
        return []
    return [*sorted(found | ({"HEAD"} if "GET" in found else set())), "OPTIONS"]


class Methods:
    """ASGI middleware directly around the routes.

    Args:
        routes: the routes of the application.
    """

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self._head(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "OPTIONS":
            await self._options(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _options(self, scope: Scope, receive: Receive, send: Send) -> None:
        # `*` asks for the server as a whole (RFC 9110, 9.3.7).
        allowed = [*_OWN, "HEAD", "OPTIONS"] if scope["path"] == "*" else allowed_methods(self._routes, scope)
        if not allowed:
            await self._app(scope, receive, send)  # which finds nothing either, and says so
            return
        await Response(status_code=204, headers={"Allow": ", ".join(allowed)})(scope, receive, send)

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = {**scope, "method": "GET"}
        # Given up once the head is sent: a stream of events would go on until its job ends.
        with anyio.CancelScope() as rest:

            async def send_head(message: Message) -> None:
                if message["type"] != "http.response.start":
                    return
                await send(message)
                await send({"type": "http.response.body"})
                rest.cancel()

            await self._app(asked, receive, send_head)
        if "route" in asked:
            scope["route"] = asked["route"]  # for the figures, which count by route
