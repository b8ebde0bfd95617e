"""JSON as RFC 8259 defines it, and as it can be stored and sent back unchanged: the one parser of requests, rows and
files.
"""

from __future__ import annotations

import json
import math
from typing import Any

_LONGEST_INTEGER = 4000
"""Digits of the longest integer that is read. Python's own limit is a little higher, and its message advises to
change Python."""


def strict_loads(text: str | bytes) -> Any:
    """The value in this text. NaN, Infinity (1e999 too), a key twice in one object and endless integers are refused.

    Raises:
        ValueError: what is wrong with the text: json.JSONDecodeError where it is no JSON, UnicodeDecodeError where it is not UTF-8.
        RecursionError: the value is nested too deeply.
    """
    return json.loads(
        text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=_unique_keys
    )


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _whole(text: str) -> int:
    # Checked before int(): converting takes time that grows with the square of the digits.
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(text)} digits is larger than any number here")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is larger than any double")
    return number


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} appears twice in one object")
    return result
