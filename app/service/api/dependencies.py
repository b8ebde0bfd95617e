"""What several routes read from a request: who asks, the strict JSON body, what is accepted, and where in a list a page begins."""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query, Request

from app.service.api.strict_json import JsonBody, read_body, read_json, require_json_type
from app.service.auth import Principal, principal_of
from app.service.parts import Service, service_of
from app.service.timestamps import rfc3339
from cost_models.errors import InvalidInputError, Problem

Here = Annotated[Service, Depends(service_of)]
"""The service that received the request."""
Caller = Annotated[Principal, Depends(principal_of)]
"""Who asks; a route that declares it refuses everybody without a valid key."""
Moment = tuple[datetime, str]
"""When an object was stored, and its id: lists are ordered by the two, since several objects may share a moment."""


# It asks for the caller although it needs none, so that nothing of a body is read or parsed for somebody without a key.
async def _body(request: Request, service: Here, _caller: Caller) -> JsonBody:
    settings = service.settings
    return await read_json(request, max_bytes=settings.max_body_bytes, max_depth=settings.max_json_depth)


Body = Annotated[JsonBody, Depends(_body)]


async def _raw_body(request: Request, service: Here, _caller: Caller) -> bytes:
    require_json_type(request)
    return await read_body(request, max_bytes=service.settings.max_body_bytes)


RawBody = Annotated[bytes, Depends(_raw_body)]
"""A body that says to be JSON, for whoever parses it in another process."""
Limit = Annotated[int, Query(ge=1, le=100, description="Number of entries on a page.")]
STORABLE = r"^[^\x00]+$"
"""Ids that a database can be asked for: PostgreSQL has no text with U+0000."""
_ID = re.compile(r"[A-Za-z0-9._:+-]{1,80}")
_CURSOR = Query(max_length=300, description="`next_cursor` of the page before.")

_WEIGHT = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")


def prefers(accept: str, media_type: str) -> bool:
    """Whether an `Accept` header names this type, and gives it no smaller weight than JSON, which is what there is otherwise.

    Wildcards do not name it. A weight that cannot be read counts as none, which is 1.
    """
    weights = dict[str, float]()
    for entry in accept.lower().split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        found = next(filter(None, map(_WEIGHT.fullmatch, parameters)), None)
        weights[name] = float(found[1]) if found else 1.0
    weight = weights.get(media_type, 0.0)
    return weight > 0 and weight >= weights.get("application/json", 0.0)


def cursor_of(created_at: datetime, object_id: str) -> str:
    """The place after this object as opaque text."""
    # A place and not a page number: objects that are stored between two requests then neither repeat nor hide an entry.
    return base64.urlsafe_b64encode(json.dumps([rfc3339(created_at), object_id]).encode()).decode()


def _place(cursor: Annotated[str | None, _CURSOR] = None) -> Moment | None:
    if cursor is None:
        return None
    try:
        moment, object_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        place = datetime.fromisoformat(moment)
    except (binascii.Error, UnicodeError, ValueError, TypeError):
        place, object_id = None, None
    # A place that this service issued is a moment of its own life and an id of its own alphabet. Others may be beyond what a
    # database can hold: years that no timestamp has, halves of surrogate pairs.
    if (
        place is None
        or place.tzinfo is None
        or not 2000 <= place.year < 3000
        or not isinstance(object_id, str)
        or not _ID.fullmatch(object_id)
    ):
        problem = Problem(
            "/query/cursor", "cursor: this service did not issue it", "Use `next_cursor` of the page before."
        )
        raise InvalidInputError([problem])
    return place, object_id


Place = Annotated[Moment | None, Depends(_place)]


def page_of(items: list[dict[str, Any]], *, last: Moment | None) -> dict[str, Any]:
    """A page of a list; `last` is the place of its last entry, or None where no more entries follow."""
    return {"items": items, "next_cursor": None if last is None else cursor_of(*last)}
