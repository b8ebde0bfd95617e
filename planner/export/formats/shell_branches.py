"""Which branches of a shell script are taken, told without running it: True, False, or None where it cannot be told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from planner.export.formats.shell_words import RawWord

_BETWEEN = frozenset({"{", "}", "!", "time"})
_REDIRECTS = frozenset({"<", ">", ">>", "<<", "<<-", "<<<", "2>&1", "&>", ">&"})
FUNCTION = "()"
"""Ends the name of a function that is defined."""
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip
Truth = bool | None
Tested = Callable[[RawWord], tuple[str, Truth]]
"""Text of an operand, and whether it is known; None where it is empty without arguments."""


@dataclass(frozen=True)
class Listed:
    """A simple command and the operator that ends it."""

    words: list[RawWord]
    ender: str


def listed(words: Sequence[RawWord]) -> Iterator[Listed]:
    """Simple commands: what stands between `;`, `&&`, `|` and ends of lines. An array's brackets and a test's stay inside."""
    held: list[RawWord] = []
    position = 0
    while position < len(words):
        word = words[position]
        operator = word.pieces[0].text if word.is_operator else ""
        position += 1
        if not operator or operator in _REDIRECTS or (_in_test(held) and operator != "\n"):
            held.append(word)
        elif operator == "(" and held and held[-1].bare.endswith("="):
            inside, position = _bracketed(words, position)
            held += [word, *inside]
        elif operator == "(" and _is(words, position, "("):
            # Arithmetic: `if (( SIZE > 13 ))`, `for ((i = 0; i < 8; i++))`.
            position = _behind_arithmetic(words, position + 1)
            held.append(RawWord((), word.line, word.column))
        elif operator == "(" and len(held) in (1, 2) and _is(words, position, ")"):
            yield Listed(held, FUNCTION)
            held, position = [], position + 1
        else:
            yield Listed(held, operator)
            held = []
    yield Listed(held, "\n")


def _is(words: Sequence[RawWord], position: int, operator: str) -> bool:
    return position < len(words) and words[position].is_operator and words[position].pieces[0].text == operator


def _in_test(held: Sequence[RawWord]) -> bool:
    bare = [word.bare for word in held]
    return "[[" in bare and "]]" not in bare


def _bracketed(words: Sequence[RawWord], position: int) -> tuple[list[RawWord], int]:
    found: list[RawWord] = []
    while position < len(words):
        word = words[position]
        position += 1
        if not (word.is_operator and not word.pieces[0].text.strip()):
            found.append(word)
        if _is([word], 0, ")"):
            break
    return found, position


def _behind_arithmetic(words: Sequence[RawWord], position: int) -> int:
    while position + 1 < len(words) and not (_is(words, position, ")") and _is(words, position + 1, ")")):
        if _is(words, position, "\n"):
            return position
        position += 1
    return position + 2


@dataclass
class _Branch:
    kind: Literal["if", "case", "loop"]
    runs: Truth = None
    taken: Truth = False
    """Whether an earlier branch of it is the one that runs."""
    asks: bool = True
    """Whether the condition, or the pattern, is still being read."""
    until: bool = False
    conditions: list[Listed] = field(default_factory=list)
    subject: tuple[str, Truth] = ("", None)
    patterns: list[RawWord] = field(default_factory=list)


class Branches:
    """Follows `if`, `case` and loops through the commands of a script."""

    def __init__(self, tested: Tested) -> None:
        self._tested = tested
        self._open: list[_Branch] = []
        self._list: Truth = True
        """Whether the next command of `a && b || c` runs."""

    @property
    def runs(self) -> Truth:
        """Whether the command that was entered last runs."""
        states = [branch.runs for branch in self._open] + [self._list]
        return False if False in states else None if None in states else True

    def entered(self, given: Listed) -> list[RawWord]:
        """What is left of a command behind the keywords before it; empty where nothing of it is run."""
        raw = self._behind_keywords(given)
        top = self._open[-1] if self._open else None
        # Between `in` or `;;` and `)` stand patterns, which look like commands.
        if top is not None and top.kind == "case" and top.asks:
            top.patterns += raw
            if given.ender == ")":
                self._match(top)
            return []
        if top is not None and top.kind == "case" and given.ender == ";;":
            top.asks, top.patterns = True, []
        if top is not None and top.asks and top.kind != "case":
            if raw:
                top.conditions.append(Listed(raw, given.ender))
            return []
        self._list = self._next
        self._next = self._behind(raw, given.ender)
        return [] if _is_test(raw) else raw

    _next: Truth = True

    def _behind(self, raw: list[RawWord], ender: str) -> Truth:
        if ender not in ("&&", "||") or not raw:
            return True
        # `a && b || c`: where a failed, b is left out and c runs.
        if self._list is False:
            return ender == "||" or False
        # A command that is no test is taken to succeed.
        truth = self._truth(raw) if _is_test(raw) else (True if ender == "&&" else None)
        truth = truth if self._list is True else None
        return truth if ender == "&&" or truth is None else not truth

    def _behind_keywords(self, given: Listed) -> list[RawWord]:
        raw = given.words
        while raw:
            keyword = raw[0].bare
            if keyword == "for":
                # `for X in ...` holds words, not a command, and how often its body runs is not followed.
                self._open.append(_Branch("loop", runs=None, asks=False))
                return []
            if keyword == "case" and len(raw) > 1:
                self._open.append(_Branch("case", runs=None, subject=self._tested(raw[1])))
                raw = raw[2:]
                return raw[1:] if raw and raw[0].bare == "in" else raw
            if not self._turned(keyword):
                return raw
            raw = raw[1:]
        return raw

    def _turned(self, keyword: str) -> bool:
        """Follows a keyword that a command may stand behind; whether it is one."""
        top = self._open[-1] if self._open else None
        asks = top is not None and top.asks
        if keyword in ("if", "while", "until"):
            self._open.append(_Branch("if" if keyword == "if" else "loop", runs=True, until=keyword == "until"))
        elif keyword in ("then", "do"):
            if top is not None and asks:
                self._decide(top)
        elif keyword in ("elif", "else") and top is not None and top.kind == "if":
            self._turn(top, asks=keyword == "elif")
        elif keyword in ("fi", "done", "esac"):
            del self._open[-1:]
        else:
            return keyword in _BETWEEN and not asks
        return True

    def _decide(self, top: _Branch) -> None:
        truth = self._condition(top.conditions)
        # A loop that starts runs its body more than once, with other values each time, so that the body stays untold.
        if top.kind == "loop":
            stops = truth if top.until else (None if truth is None else not truth)
            top.runs = False if stops else None
        else:
            top.runs = _unless(top.taken, truth)
            top.taken = True if True in (top.taken, truth) else None if None in (top.taken, truth) else False
        top.asks, top.conditions = False, []

    def _turn(self, top: _Branch, *, asks: bool) -> None:
        top.asks, top.conditions = asks, []
        top.runs = True if asks else _unless(top.taken, True)

    def _match(self, top: _Branch) -> None:
        text, known = top.subject
        truth: Truth = False
        for word in top.patterns:
            if word.is_operator:
                continue
            pattern, closed = self._tested(word)
            one = None if known is not True or closed is not True else fnmatchcase(text, pattern)
            truth = True if True in (truth, one) else None if None in (truth, one) else False
        top.runs = _unless(top.taken, truth)
        top.taken = True if True in (top.taken, truth) else None if None in (top.taken, truth) else False
        top.asks = False

    def _condition(self, conditions: Sequence[Listed]) -> Truth:
        """The truth of `a && b || c`; of several commands the last one's."""
        found: Truth = None
        joins = ""
        for each in conditions:
            truth = self._truth(each.words)
            if joins == "&&":
                found = False if False in (found, truth) else None if None in (found, truth) else True
            elif joins == "||":
                found = True if True in (found, truth) else None if None in (found, truth) else False
            else:
                found = truth
            joins = each.ender
        return found

    def _truth(self, raw: Sequence[RawWord]) -> Truth:
        """The truth of one command; None where it is no test that can be told."""
        if raw and raw[0].bare == "!":
            truth = self._truth(raw[1:])
            return None if truth is None else not truth
        if not _is_test(raw):
            return {"true": True, "false": False}.get(raw[0].bare if raw else "")
        words = list(raw[1:] if raw[0].bare == "test" else raw[1:-1])
        return self._test(words)

    def _test(self, words: list[RawWord]) -> Truth:
        # The operator that binds least is split at first.
        for joins in ("||", "&&"):
            for position, word in enumerate(words):
                if word.is_operator and word.pieces[0].text == joins:
                    sides = (self._test(words[:position]), self._test(words[position + 1 :]))
                    decisive = joins == "||"
                    return decisive if decisive in sides else None if None in sides else not decisive
        if words and words[0].bare == "!":
            truth = self._test(words[1:])
            return None if truth is None else not truth
        if len(words) == 1:
            return self._filled(words[0])
        if len(words) == 2 and words[0].bare in ("-z", "-n"):
            filled = self._filled(words[1])
            return None if filled is None else filled is (words[0].bare == "-n")
        return self._compared(*words) if len(words) == 3 else None

    def _filled(self, word: RawWord) -> Truth:
        text, known = self._tested(word)
        # A text with a part that is known is not empty, whatever the others are.
        return None if known is False and not re.sub(r"\$\S*|`.*`", "", text) else bool(text)

    def _compared(self, left: RawWord, operator: RawWord, right: RawWord) -> Truth:
        (one, known), (two, also) = self._tested(left), self._tested(right)
        name = operator.bare
        if known is not True or also is not True:
            return None
        if name in ("=", "==", "!="):
            is_pattern = any(not piece.quoted and re.search(r"[*?\[]", piece.text) for piece in right.pieces)
            same = fnmatchcase(one, two) if is_pattern else one == two
            return same is (name != "!=")
        if name in _COMPARED and all(re.fullmatch(r"-?\d{1,12}", each) for each in (one, two)):
            return _COMPARED[name](int(one), int(two))
        return None


def _is_test(raw: Sequence[RawWord]) -> bool:
    return bool(raw) and raw[0].bare in ("[", "[[", "test")


def _unless(taken: Truth, truth: Truth) -> Truth:
    """Whether a branch runs whose condition has a truth, behind branches that may have been taken."""
    if taken is True or truth is False:
        return False
    return None if taken is None or truth is None else True
