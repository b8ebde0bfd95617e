"""Request bodies, read with a bound on memory and parsed as strict JSON that can be stored and sent back unchanged.

Refused are bodies above the limit, other media types, NaN and Infinity (also written as 1e999), a key that occurs twice in one
object, text that is not valid Unicode, and nesting deeper than any document of the contract.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
from fastapi import Request

from app.errors import BodyTooLargeError, MediaTypeError, NotJsonError
from cost_models.strict_json import strict_loads

_PARSED_AT_ONCE = 2
"""Bodies that are parsed at a time. Each keeps a thread, and Python's lock for most of the time, from everybody else."""
_limiter: RunVar[CapacityLimiter] = RunVar("limiter of parsing")


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A parsed body and the digest of its bytes."""

    value: Any
    sha256: str


async def read_json(request: Request, *, max_bytes: int, max_depth: int) -> JsonBody:
    """The request's body.

    Raises:
        MediaTypeError, BodyTooLargeError, NotJsonError: it is one of those that this module refuses (see its docstring).
    """
    require_json_type(request)
    raw = await read_body(request, max_bytes=max_bytes)
    # A body of the largest size takes a tenth of a second, during which nobody else would be answered.
    return await to_thread.run_sync(_parsed, raw, max_depth, limiter=_parsers())


def _parsed(raw: bytes, max_depth: int) -> JsonBody:
    return JsonBody(parse_json(raw, max_depth=max_depth), hashlib.sha256(raw).hexdigest())


def _parsers() -> CapacityLimiter:
    """What bounds the parsing of the running event loop."""
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = CapacityLimiter(_PARSED_AT_ONCE)
        _limiter.set(limiter)
    return limiter


def parse_json(raw: bytes, *, max_depth: int) -> Any:
    """The document in these bytes.

    Raises:
        NotJsonError: the bytes are not strict JSON.
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


_HINT = "Send one JSON document (RFC 8259) in UTF-8, without NaN, Infinity or repeated keys."


def require_json_type(request: Request) -> None:
    """Refuses a body that does not say to be plain JSON.

    Raises:
        MediaTypeError: it has another media type, or a content encoding.
    """
    given = request.headers.get("content-type", "")
    # Required although every body is JSON: a browser sends other types across origins without asking first (CORS), so that a
    # foreign page cannot post to a keyless service on its visitor's machine.
    media_type = given.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise MediaTypeError(
            f"the body is {media_type or 'of no media type'}, not application/json",
            hint="Send `Content-Type: application/json`.",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise MediaTypeError(f"the body is encoded as {encoding[:40]}", hint="Send it without Content-Encoding.")


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The bytes of the body.

    Raises:
        BodyTooLargeError: there are more than `max_bytes`.
    """
    too_large = BodyTooLargeError(f"the body is larger than {max_bytes} bytes", hint="Send smaller requests.")
    # The announced length spares reading a body that is honestly too large; the count while reading catches the others.
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def _check(value: Any, *, max_depth: int) -> None:
    # Level by level instead of by recursion, so that no depth of nesting can exhaust the stack.
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
    # PostgreSQL cannot store NUL in text, and UTF-8 cannot encode half of a surrogate pair.
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise NotJsonError("the body holds half of a surrogate pair", hint=_HINT)
    if "\0" in text:
        raise NotJsonError("the body holds the character U+0000", hint=_HINT)


def _too_deep(max_depth: int) -> str:
    return f"the body is nested deeper than {max_depth} levels"
