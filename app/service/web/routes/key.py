"""The page where a visitor enters a key, and takes it back."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.service.api.dependencies import Here
from app.service.api.strict_json import read_body
from app.service.web.rendering import page
from app.service.web.visitors import COOKIE, OwnPage, entered_key, forget_key, remember_key

router = APIRouter(include_in_schema=False)
_MOST_BYTES = 4096


@router.api_route("/key", methods=["GET", "HEAD"])
async def show_key(
    request: Request, service: Here, after: Annotated[str, Query(alias="next", max_length=300)] = "/"
) -> HTMLResponse:
    """Whether a key is in use, and the field to enter one."""
    return await _page(request.cookies.get(COOKIE), service, after=_own_path(after))


@router.post("/key", dependencies=[OwnPage])
async def enter_key(request: Request, service: Here) -> Response:
    """Keeps a valid key in the visitor's browser and goes on to the page that asked for it."""
    raw = await read_body(request, max_bytes=_MOST_BYTES)
    # Parsed here, because the fields of a plan request are read by name and a key must never be shown in a form again.
    given = dict(parse_qsl(raw.decode("utf-8", "replace"), max_num_fields=10))
    after = _own_path(given.get("next", "/"))
    key = given.get("key", "").strip()
    if not key or await entered_key(service, key) is None:
        reason = (
            "This key is not valid: it is misspelt, it was revoked, or it has expired."
            if key
            else "No key was entered."
        )
        return await _page(None, service, after=after, reason=reason)
    answer = RedirectResponse(after, status_code=303)
    remember_key(request, answer, key)
    return answer


@router.post("/key/forget", dependencies=[OwnPage])
def leave() -> Response:
    """Takes the key out of the visitor's browser."""
    answer = RedirectResponse("/key", status_code=303)
    forget_key(answer)
    return answer


async def _page(key: str | None, service: Here, *, after: str, reason: str = "") -> HTMLResponse:
    held = None if key is None else await entered_key(service, key)
    return page(
        "key",
        title="Key",
        status=401 if reason else 200,
        tenant=held and held.tenant,
        scopes=held and held.scopes,
        is_stale=key is not None and held is None,
        is_open=service.settings.is_open,
        after=after,
        reason=reason,
    )


def _own_path(path: str) -> str:
    """A path of this service to go on to, whatever a link asked for."""
    # Browsers read `//host` and `/\host` as addresses of another host.
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and path.isascii()
    return path if is_own else "/"
