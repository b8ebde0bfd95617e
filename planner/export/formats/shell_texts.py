"""Texts of variables with the places where their stretches are written down: joining, splitting, adding to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from planner.export.formats.shell_words import Part, RawWord, Word


def texts(words: list[Word]) -> list[str]:
    """Their texts."""
    return [word.text for word in words]


def word_of(parts: Sequence[Part], at: RawWord) -> Word:
    """A word of parts; it stands where its only part does, or where the word is written."""
    kept = [part for part in parts if part.text]
    text, is_open = "".join(part.text for part in kept), any(part.is_open for part in kept)
    if len(kept) == 1:
        line, column = (kept[0].line, kept[0].column) if kept[0].line else (at.line, at.column)
        return Word(text, line, column, is_open)
    return Word(text, at.line, at.column, is_open, parts=tuple(kept))


def joined_words(words: list[Word]) -> Word:
    """Words as one text, with spaces between."""
    if len(words) == 1:
        return words[0]
    parts = [
        part for number, word in enumerate(words) for part in (*([Part(" ", 0, 0)] if number else []), *word.stretches)
    ]
    return word_of(parts, RawWord((), 0, 0))


def as_text(words: list[Word], at: RawWord) -> Word:
    """The value of a variable as one text; an array stands where the variable is used."""
    return words[0] if len(words) == 1 else replace(joined_words(words), line=at.line, column=at.column)


def with_addition_open(before: list[Word], value: list[Word]) -> list[Word] | None:
    """The value with what it adds to the one before left open; None where it is another one."""
    if len(before) == 1 and len(value) == 1:
        old, new = before[0].stretches, value[0].stretches
        if len(new) <= len(old) or new[: len(old)] != old:
            return None
        more = tuple(replace(part, is_open=True) for part in new[len(old) :])
        return [replace(value[0], parts=(*old, *more), is_open=True)]
    if len(value) > len(before) and value[: len(before)] == before:
        return [*before, *(replace(word, is_open=True, parts=()) for word in value[len(before) :])]
    return None


def split_text(word: Word) -> list[Word]:
    """Words of a text whose variable stood without quotes, each with its own line."""
    stretches, starts, at = word.stretches, [], 0
    for part in stretches:
        starts.append(at)
        at += len(part.text)
    # What a shell would compute is one word, however it is written.
    text = "".join(re.sub(r"\s", "_", part.text) if is_expression(part) else part.text for part in stretches)
    whole, found, number = "".join(part.text for part in stretches), [], 0
    passed, line_start, newlines = 0, 0, 0
    for match in re.finditer(r"\S+", text):
        while number + 1 < len(stretches) and starts[number + 1] <= match.start():
            number += 1
            passed, line_start, newlines = starts[number], starts[number], 0
        # A backslash that ended a line inside quotes is part of the text, but no word.
        if match.group() == "\\":
            continue
        part = stretches[number]
        more = text.count("\n", passed, match.start())
        if more:
            newlines, line_start = newlines + more, text.rindex("\n", passed, match.start()) + 1
        passed = match.start()
        until = number
        while until + 1 < len(stretches) and starts[until + 1] < match.end():
            until += 1
        # The value of one variable stands where that is set.
        last = stretches[until]
        of_value = (
            last.line
            and starts[until] + len(last.text) <= match.end()
            and "=" in match.group()[: starts[until] - match.start()]
        )
        is_open = any(each.is_open for each in stretches[number : until + 1])
        column = match.start() - line_start + (1 if newlines else part.column)
        line = part.line + newlines if part.line else word.line
        if of_value and starts[until] > match.start():
            line, column = last.line, last.column
        found.append(
            Word(whole[match.start() : match.end()], line, column if line else word.column, is_open, word.is_bare)
        )
    return found


def is_expression(part: Part) -> bool:
    """Whether it is a `$` expression as it is written, which only a shell could compute."""
    return part.is_open and part.text[:1] in ("$", "`")


def is_unset(text: str) -> bool:
    """Whether a `$` expression is empty without arguments and with nothing in the environment."""
    return re.fullmatch(r"\$(\{?[A-Za-z_]\w*\}?|\{?\d+\}?|[@*]|\{[@*]\})", text) is not None
