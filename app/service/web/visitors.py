"""Who looks at a page: the tenant of the key in the visitor's cookie or, where no key is needed, the local one.

The cookie is for the pages alone. They live outside `/v1`, whose routes read the `Authorization` header and no cookie.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Response

from app.errors import ForbiddenError, UnauthorizedError
from app.service.auth import Principal, found_key, key_holder, local_principal
from app.service.db.keys import Key
from app.service.parts import Service, service_of

COOKIE = "meshwright_key"
_LONGEST_KEY = 200


async def visitor_of(request: Request, service: Annotated[Service, Depends(service_of)]) -> Principal:
    """The visitor's tenant, whose example objects exist afterwards.

    Raises:
        UnauthorizedError: a key is needed and the visitor has entered none, or one that is not valid.
        ForbiddenError: the key lacks the scope that this page needs, or no key is needed, but the page was asked for under a
            public name.
    """
    key = request.cookies.get(COOKIE)
    if key is None:
        if not service.settings.is_open:
            raise UnauthorizedError("this service needs a key", hint="Enter yours on the page /key.")
        return await local_principal(request, service)
    found = await entered_key(service, key)
    if found is None:
        raise UnauthorizedError(
            "the key that you entered is no longer valid", hint="Enter another one on the page /key."
        )
    return await key_holder(request, service, found, secret=key)


Visitor = Annotated[Principal, Depends(visitor_of)]
"""Who looks at the page; a route that declares it shows a visitor without a valid key the way to `/key`."""


async def entered_key(service: Service, key: str) -> Key | None:
    """The key as a visitor entered it; None if it is unknown, revoked or expired."""
    # Keys are short; what is not can be no key, and text outside ASCII would not survive the cookie.
    if len(key) > _LONGEST_KEY or not key.isascii():
        return None
    return await found_key(service, key)


def remember_key(request: Request, response: Response, key: str) -> None:
    """Gives the key to the visitor's browser until it is closed."""
    # Without `secure` the cookie would be lost on a service in a private network that speaks plain HTTP. Lax and not strict, so that
    # a link in a chat or a mail opens a plan for whoever has a key: following a link changes nothing here, and what changes
    # something is guarded by `require_own_page`.
    response.set_cookie(COOKIE, key, httponly=True, samesite="lax", secure=request.url.scheme == "https", path="/")


def forget_key(response: Response) -> None:
    """Takes the key out of the visitor's browser."""
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")


def require_own_page(request: Request) -> None:
    """Refuses a request that changes something unless a page of this service sent it.

    Raises:
        ForbiddenError: a page of another origin sent it, or it does not say which page did.
    """
    # Browsers send the cookie, and the right to be local, along with whatever page asks. `Sec-Fetch-Site` cannot be set by a page;
    # browsers leave it out only where the service is neither local nor on TLS, and then `Origin` says the same.
    site = request.headers.get("sec-fetch-site")
    if site == "same-origin":
        return
    origin = request.headers.get("origin", "")
    # Hosts and not whole origins: behind a proxy that ends TLS the service does not know the scheme that the visitor used.
    if site is None and _host(origin) == request.headers.get("host", "").lower():
        return
    raise ForbiddenError(
        "this request did not come from a page of this service",
        hint="Send the form from the page itself. Programs use the calls under /v1, which need no page.",
    )


OwnPage = Depends(require_own_page)
"""Guards a route that changes something."""


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
