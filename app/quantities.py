"""Numbers as people write them: `128k` tokens of a sequence, `15T` tokens of training, `30s` of time.

Lengths and batches are powers of two in this field, so that a context of 128k is 131,072 tokens; what is trained on and
throughputs are counted in thousands. Which of the two an option means is said in its help, and the table's header shows the number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import shown

if TYPE_CHECKING:
    from fractions import Fraction

Base = Literal[1000, 1024]
"""What a `k` stands for."""
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4}
# `m` is a minute, as everywhere in this program; nobody gives a month of time to a search.
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# Commas only between groups of three digits: `1,5` is one and a half to some and fifteen to others.
_NUMBER = re.compile(
    r"\s*([+-]?)(\d{1,3}(?:,\d{3})+|\d[\d_]*|(?=\.\d))(\.\d+)?(e\+?\d{1,2})?\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE
)
_LONGEST_TEXT = 40
"""Characters of the longest number that is read; a longer one is a mistake, and could take long to compute."""
LONGEST_S = 86_400.0
COUNTED: Mapping[str, Base] = {
    "seq_length": 1024,
    "global_batch_size": 1024,
    "global_batch_tokens": 1024,
    "mean_document_length": 1024,
    "total_tokens": 1000,
}
"""Fields of the training that count something, with what a `k` stands for in each."""


def count(text: str, *, option: str, base: Base, example: str = "") -> int:
    """The whole number of a text such as `8192`, `8,192`, `8k` or `15T`; M, B (or G) and T are powers of what k stands for.

    Raises:
        InvalidInputError: the text is no number, or not a whole one above 0; the message names the option.
    """
    value = _scaled(text, base)
    example = example or ("8192, 8k (8,192) or 128k (131,072)" if base == 1024 else "300B or 15T (15,000,000,000,000)")
    if value is None:
        raise _refused(f"{option} is {shown(text)}, which is not a number", f"Write it like {example}.")
    if value.denominator != 1 or value < 1:
        # What a suffix makes of a number explains why it is not whole.
        number = f", or {float(value):,.10g}" if text.strip()[-1:].isalpha() else ""
        message = f"{option} is {shown(text)}{number}; it must be a whole number of at least 1"
        meaning = f" A k stands for {base:,} here." if number else ""
        raise _refused(message, f"Write it like {example}.{meaning}")
    return int(value)


def rate(text: str, *, option: str) -> float:
    """The number above 0 of a text such as `1.5M` or `250000`, in which a k is a thousand.

    Raises:
        InvalidInputError: the text is no number above 0; the message names the option.
    """
    value = _scaled(text, 1000)
    # A rate of 0 is no target.
    if value is None or value <= 0:
        message = f"{option} is {shown(text)}; it must be a number above 0"
        raise _refused(message, "Write it like 250000, 250k or 1.5M.")
    return float(value)


def duration_s(text: str, *, option: str, least_s: float) -> float:
    """Seconds of a text such as `500ms`, `30s`, `5m`, `1.5h` or `300`.

    Raises:
        InvalidInputError: the text is no time between `least_s` and a day; the message names the option.
    """
    value = _timed(text, "s")
    # Above a day a unit was probably mistaken.
    if value is None or not least_s <= float(value) <= LONGEST_S:
        least = f"{least_s:g}s" if least_s >= 1.0 else f"{1000.0 * least_s:g}ms"
        message = f"{option} {shown(text)} is not a time between {least} and 24h"
        raise _refused(message, "Write it like 60s, 5m, 1.5h or 300, which are seconds.")
    return float(value)


def duration_h(text: str, *, option: str) -> float:
    """Hours of a text such as `720`, `720h` or `30d`.

    Raises:
        InvalidInputError: the text is no time above 0; the message names the option.
    """
    value = _timed(text, "h")
    if value is None or value <= 0:
        raise _refused(f"{option} {shown(text)} is not a time above 0", "Write it like 30d or 720, which are hours.")
    return float(value / 3600)


def number_of(text: str, *, base: Base) -> int | float | None:
    """The number of a text, whole where it is one; None where the text is no number."""
    value = _scaled(text, base)
    if value is None:
        return None
    return int(value) if value.denominator == 1 else float(value)


def _scaled(text: str, base: Base) -> Fraction | None:
    number, suffix = _parts(text)
    return None if number is None or suffix not in _POWERS else number * base ** _POWERS[suffix]


def _timed(text: str, unit: str) -> Fraction | None:
    """Seconds of a text whose number alone is in `unit`."""
    number, suffix = _parts(text)
    unit = suffix or unit
    return None if number is None or unit not in _MILLISECONDS else number * _MILLISECONDS[unit] / 1000


def _parts(text: str) -> tuple[Fraction | None, str]:
    """The number of a text, exactly, and the letters behind it in lower case."""
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None:
        return None, ""
    # Loaded here, because a command without numbers would wait for it in vain.
    from fractions import Fraction

    # A fraction is exact: 0.3T in floating point would not be a whole number.
    sign, whole, decimals, power, suffix = match.groups()
    digits = re.sub(r"[,_]", "", whole) or "0"
    return Fraction(f"{sign}{digits}{decimals or ''}{power or ''}"), suffix.lower()


def _refused(message: str, hint: str) -> InvalidInputError:
    return InvalidInputError([Problem("", message, hint)])
