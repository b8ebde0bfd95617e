"""Bodies: what strict JSON is, and that reading one never takes more memory than the limit allows."""

from __future__ import annotations

import asyncio
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from app.errors import BodyTooLargeError, MediaTypeError, NotJsonError
from app.service.api.strict_json import parse_json, read_json

LIMIT = 1 << 20
CHUNK = 1 << 16


def request(chunks: int, *, headers: dict[str, str] | None = None) -> tuple[Request, list[int]]:
    """A request with a body of this many chunks, and a place where the chunks taken are counted."""
    taken = [0]

    async def receive() -> dict[str, Any]:
        taken[0] += 1
        return {"type": "http.request", "body": b" " * CHUNK, "more_body": taken[0] < chunks}

    given_headers = {"content-type": "application/json", **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in given_headers.items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive), taken


def test_an_endless_body_is_read_up_to_the_limit_and_one_chunk() -> None:
    body, taken = request(10**9)
    tracemalloc.start()
    with pytest.raises(BodyTooLargeError, match="1048576"):
        asyncio.run(read_json(body, max_bytes=LIMIT, max_depth=64))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken[0] == LIMIT // CHUNK + 1
    assert peak_bytes < 2 * LIMIT


def test_of_an_announced_size_above_the_limit_nothing_is_read() -> None:
    body, taken = request(2, headers={"content-length": str(LIMIT + 1)})
    with pytest.raises(BodyTooLargeError):
        asyncio.run(read_json(body, max_bytes=LIMIT, max_depth=64))
    assert taken == [0]


def test_a_large_body_is_parsed_beside_the_event_loop() -> None:
    """While a list of a million bytes is parsed, which takes some 50 ms, the loop goes on turning."""
    content = b"[" + b"1," * ((LIMIT - 4) // 2) + b"1]"

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def turns() -> int:
        headers = [(b"content-type", b"application/json")]
        asked = Request({"type": "http", "method": "POST", "headers": headers}, receive)
        parsing = asyncio.ensure_future(read_json(asked, max_bytes=LIMIT, max_depth=64))
        count = 0
        while not parsing.done():
            await asyncio.sleep(0)
            count += 1
        assert len((await parsing).value) == (LIMIT - 4) // 2 + 1
        return count

    # On the loop it is done after two turns: one in which it runs, and one that sees that it has.
    assert asyncio.run(turns()) > 10


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "APPLICATION/JSON"])
def test_parameters_and_case_of_the_media_type_do_not_matter(media_type: str) -> None:
    body, _ = request(1, headers={"content-type": media_type})
    with pytest.raises(NotJsonError):  # white space is no document; the media type was accepted
        asyncio.run(read_json(body, max_bytes=LIMIT, max_depth=64))


def test_another_media_type_is_refused_before_reading() -> None:
    body, taken = request(1, headers={"content-type": "text/json"})
    with pytest.raises(MediaTypeError, match="text/json"):
        asyncio.run(read_json(body, max_bytes=LIMIT, max_depth=64))
    assert taken == [0]


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("depth", [1, 63, 64])
def test_documents_up_to_the_depth_are_read(depth: int) -> None:
    assert parse_json(nested(depth), max_depth=64) is not None


@pytest.mark.parametrize("depth", [65, 66, 900, 100_000])
def test_deeper_documents_are_refused(depth: int) -> None:
    with pytest.raises(NotJsonError, match="64 levels"):
        parse_json(nested(depth), max_depth=64)


def test_a_repeated_key_is_named() -> None:
    with pytest.raises(NotJsonError, match="'b' appears twice"):
        parse_json(b'{"a": 1, "b": 2, "b": 3}', max_depth=64)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé", max_size=3), inner, max_size=4),
        max_leaves=20,
    )
)
def test_every_strict_document_is_read_as_it_was_written(document: Any) -> None:
    import json

    assert parse_json(json.dumps(document).encode(), max_depth=64) == document


@given(st.binary(max_size=60))
def test_any_bytes_are_a_finite_document_or_an_error(raw: bytes) -> None:
    try:
        value = parse_json(raw, max_depth=64)
    except NotJsonError:
        return
    assert not (isinstance(value, float) and not math.isfinite(value))


def test_an_integer_of_thousands_of_digits_is_refused_by_its_length() -> None:
    with pytest.raises(NotJsonError, match="an integer of 5000 digits is larger than any number here"):
        parse_json(b"9" * 5000, max_depth=64)


def sent(body: bytes, **headers: str) -> Request:
    """A request with this body, in one piece."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    raw = raw if "content_type" in headers else [(b"content-type", b"application/json"), *raw]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive)


def read(body: bytes, *, max_bytes: int = 100, **headers: str) -> Any:
    return asyncio.run(read_json(sent(body, **headers), max_bytes=max_bytes, max_depth=64)).value


def test_a_body_of_exactly_the_limit_is_read_announced_or_not() -> None:
    body = b'"' + b"a" * 98 + b'"'
    assert read(body) == "a" * 98
    assert read(body, content_length="100") == "a" * 98
    assert read(body, content_length="-5") == "a" * 98  # no number: the bytes are counted
    with pytest.raises(BodyTooLargeError, match="larger than 100 bytes"):
        read(body + b" ")
    for announced in ("101", "1" * 40):
        with pytest.raises(BodyTooLargeError):
            read(b"{}", content_length=announced)


@pytest.mark.parametrize(
    ("given", "told"), [("", "of no media type"), ("text/plain; a=b", "text/plain"), (";", "of no media")]
)
def test_the_media_type_is_told_without_its_parameters(given: str, told: str) -> None:
    with pytest.raises(MediaTypeError, match=f"the body is {told}, not application/json|the body is {told}"):
        read(b"{}", content_type=given)


def test_an_encoding_is_refused_by_its_name_which_is_cut() -> None:
    assert read(b"{}", content_encoding=" Identity ") == {}
    with pytest.raises(MediaTypeError) as caught:
        read(b"{}", content_encoding="x" * 100)
    assert str(caught.value) == "the body is encoded as " + "x" * 40


def test_a_list_that_goes_too_deep_is_found_beside_numbers() -> None:
    with pytest.raises(NotJsonError, match="2 levels"):
        parse_json(b'[[1, [], "a"]]', max_depth=2)
    assert parse_json(b'[[1, "a"]]', max_depth=2) == [[1, "a"]]


@pytest.mark.parametrize("text", ['"\\ud800"', '"a\\ud800\u00e9"', '"\\udfff"', '{"a\\udc00": 1}', '[["\\ud912b"]]'])
def test_half_of_a_surrogate_pair_is_found_wherever_it_is(text: str) -> None:
    with pytest.raises(NotJsonError, match="half of a surrogate pair"):
        parse_json(text.encode(), max_depth=64)


def test_whole_surrogate_pairs_and_the_characters_beside_them_are_text() -> None:
    assert parse_json(b'"\\ud83d\\ude00 \\ud7ff\\ue000"', max_depth=64) == "\U0001f600 \ud7ff\ue000"
