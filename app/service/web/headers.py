"""What every answer of the service tells a browser about itself: load nothing from elsewhere, run nothing but our own files."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of all pages, the API's documentation included: no inline script, no inline style, no other host."""
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    # Not `no-referrer`: browsers would then send `Origin: null` with our own forms, and `require_own_page` could not tell them from
    # those of a foreign page.
    (b"referrer-policy", b"same-origin"),
    # Pages of others can neither show or run what is here, nor keep a hold of a window that opens it.
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""Headers of every answer, those of the server below the application included."""
# What one visitor may see is nobody else's: a cache between must not keep it. Files that tell which version they are may be kept.
_NOT_SHARED = (b"cache-control", b"private, no-cache")
_SAY_HOW_LONG = frozenset({b"cache-control", b"etag"})


class PageHeaders:
    """ASGI middleware that adds the headers to every answer, since a browser may be shown any of them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = message["headers"]
                says = any(name.lower() in _SAY_HOW_LONG for name, _ in given)
                message["headers"] = [*given, *HEADERS, *(() if says else (_NOT_SHARED,))]
            await send(message)

        await self._app(scope, receive, send_with_headers)
