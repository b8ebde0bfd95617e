"""Request bodies: read with a bound on memory, and parsed as the strict JSON that can be stored and sent back unchanged.

Refused: more than the limit, another media type, NaN and Infinity (also as 1e999), a key twice in one object, text that is
not valid Unicode, and nesting deeper than any document of the contract.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from app.errors import BodyTooLargeError, MediaTypeError, NotJsonError
from cost_models.strict_json import strict_loads

_DRAINED_BODIES = 32
"""A body over the limit is read and thrown away up to this many times the limit, so that its sender sees the answer."""


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A parsed body, and the digest of its bytes."""

    value: Any
    sha256: str


async def read_json(request: Request, *, max_bytes: int, max_depth: int) -> JsonBody:
    """The request's body.

    Raises:
        MediaTypeError, BodyTooLargeError, NotJsonError: see the module's first lines.
    """
    _require_json_type(request)
    raw = await _read(request, max_bytes=max_bytes)
    return JsonBody(parse_json(raw, max_depth=max_depth), hashlib.sha256(raw).hexdigest())


def parse_json(raw: bytes, *, max_depth: int) -> Any:
    """The document in these bytes.

    Raises:
        NotJsonError: it is not strict JSON.
    """
    try:
        value = strict_loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise NotJsonError(f"the body is not UTF-8: byte {error.start}", hint=_HINT) from error
    except RecursionError as error:
        raise NotJsonError(_too_deep(max_depth), hint=_HINT) from error
    except ValueError as error:
        raise NotJsonError(f"the body is not JSON: {error}"[:300], hint=_HINT) from error
    _check(value, max_depth=max_depth)
    return value


_HINT = "Send one JSON document (RFC 8259), UTF-8, without NaN, Infinity or repeated keys."


def _require_json_type(request: Request) -> None:
    given = request.headers.get("content-type", "")
    media_type = given.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise MediaTypeError(
            f"the body is {media_type or 'of no media type'}, not application/json",
            hint="Send `Content-Type: application/json`.",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise MediaTypeError(f"the body is encoded as {encoding[:40]}", hint="Send it without Content-Encoding.")


async def _read(request: Request, *, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    too_large = announced.isdecimal() and int(announced[:20]) > max_bytes
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        too_large = too_large or size > max_bytes
        if not too_large:
            parts.append(part)
            continue
        parts.clear()
        if size > _DRAINED_BODIES * max_bytes:
            break
    if too_large:
        raise BodyTooLargeError(f"the body is larger than {max_bytes} bytes", hint="Send smaller requests.")
    return b"".join(parts)


def _check(value: Any, *, max_depth: int) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > max_depth and any(isinstance(node, dict | list) for node in level):
            raise NotJsonError(_too_deep(max_depth), hint=_HINT)
        below: list[Any] = []
        for node in level:
            if isinstance(node, str):
                _check_text(node)
            elif isinstance(node, dict):
                for key in node:
                    _check_text(key)
                below.extend(node.values())
            elif isinstance(node, list):
                below.extend(node)
        level = below


def _check_text(text: str) -> None:
    # PostgreSQL stores no NUL, and no encoder writes half of a surrogate pair.
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise NotJsonError("the body holds half of a surrogate pair", hint=_HINT)
    if "\0" in text:
        raise NotJsonError("the body holds the character U+0000", hint=_HINT)


def _too_deep(max_depth: int) -> str:
    return f"the body is nested deeper than {max_depth} levels"
