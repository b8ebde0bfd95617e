"""Lines of a log as text: streams cut into lines of bounded length, colours and labels taken off, and printed numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from profiler.logs.reading import Line

MOST_CHARACTERS = 1 << 13
"""Longest line that is looked at. A line of metrics has a few hundred characters; the rest of a longer one is dropped, so that no
expression takes long on a line that somebody has made up.
"""
_PIECE_CHARACTERS = 1 << 16
# Colours and cursor movements (ECMA-48), hyperlinks and titles (OSC).
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|[@-Z\\-_])")
# torchrun: "[rank0]:" or "[default0]:"; srun --label: "0:"; kubectl's prefixes name pods and not ranks.
_LABEL = re.compile(r"\s*(?:\[(?:rank|default)(\d{1,6})\]:?|(\d{1,6}):(?= ))\s?")
_OF_NUMBERS = "0123456789.,eE+-"


def lines_of(source: str | Iterable[str | bytes]) -> Iterator[Line]:
    """The lines of a text, or of a file that is opened as text or bytes, of which one piece at a time is in memory."""
    for text, is_whole in _cut(pieces_of(source)):
        bare = _ESCAPES.sub("", text) if "\x1b" in text else text
        if not bare.strip():
            continue
        label = _LABEL.match(bare)
        rank = int(label[1] or label[2]) if label else None
        bare = bare[label.end() :] if label else bare
        yield Line(bare if is_whole else _without_cut_number(bare), rank, is_whole)


def _without_cut_number(text: str) -> str:
    """The text without its last word, where a file ends in what may be the beginning of a longer number."""
    if text[-1:] not in _OF_NUMBERS:
        return text
    return text[: max(text.rfind(" "), text.rfind("\t")) + 1]


def pieces_of(source: str | Iterable[str | bytes]) -> Iterator[str]:
    """The source as texts of bounded length. A file without line ends, such as a binary one, must not come as one piece."""
    for each in (source,) if isinstance(source, str) else source:
        for start in range(0, len(each), _PIECE_CHARACTERS):
            piece = each[start : start + _PIECE_CHARACTERS]
            yield piece if isinstance(piece, str) else piece.decode("utf-8", errors="replace")


def _cut(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Lines without their ends, and whether each is whole.

    A progress bar is written over with carriage returns, so that what follows it stands on the same line: these end lines, too.
    """
    held = ""
    for piece in pieces:
        *complete, rest = (held + piece.replace("\r", "\n")).split("\n")
        for line in complete:
            yield line[:MOST_CHARACTERS], len(line) <= MOST_CHARACTERS
        held = rest[: MOST_CHARACTERS + 1]
    if held:
        yield held[:MOST_CHARACTERS], False


_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_PLAIN = re.compile(r"\d+(?:\.\d*)?(?:[eE][+-]?\d{1,2})?")
_DECIMAL_COMMA = re.compile(r"\d+,\d+")
NUMBER = r"\d[\d.,]*(?:[eE][+-]?\d{1,2})?"
"""Of an expression: a number, whatever stands for the decimal point."""
_LONGEST_NUMBER = 40
"""Characters of the longest number that any program here prints; with them no number is infinite."""


class UnclearNumberError(ValueError):
    """A text that may be two numbers, such as 1,234 in a log that prints no thousands."""


def printed(text: str, *, has_thousands: bool = False) -> tuple[float, float, int]:
    """The number in this text, the distance to the next number that would be printed differently, and its significant digits.

    Args:
        text: what was printed.
        has_thousands: whether the program separates thousands by commas; otherwise a comma can only be a decimal one.

    Raises:
        UnclearNumberError: the text is no number, or could be two.
    """
    plain = text.rstrip(".,")
    if has_thousands and _THOUSANDS.fullmatch(plain):
        plain = plain.replace(",", "")
    elif not has_thousands and _DECIMAL_COMMA.fullmatch(plain):
        # Three digits behind a comma, and at most three before it, would be a thousand as well.
        if _THOUSANDS.fullmatch(plain):
            raise UnclearNumberError(text)
        plain = plain.replace(",", ".")
    if len(plain) > _LONGEST_NUMBER or not _PLAIN.fullmatch(plain):
        raise UnclearNumberError(text)
    mantissa, _, exponent = plain.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - decimals)
    digits = len(mantissa.replace(".", "").lstrip("0"))
    return float(plain), unit, digits
