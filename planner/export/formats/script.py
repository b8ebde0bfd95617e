"""What a shell script would run, as far as it can be told without running it: commands with their words, and the environment.

Assignments inside `if`, `case` and loops count only where the name has no value yet, as in `[ -z "$TP" ] && TP=4`: which branch
a shell would take is not known. A name that two branches give different values stays open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.export.formats.documents import unreadable
from planner.export.formats.shell_words import Piece, RawWord, Word, arithmetic, scanned
from planner.export.settings import InputFile

_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)(\+?)=")
_NAME = re.compile(r"^\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?$")
_DEFAULTED = re.compile(r"^\$\{([A-Za-z_]\w*):?[-=](.*)\}$", re.DOTALL)
_DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_OPENING = frozenset({"if", "case", "for", "while", "until"})
_CLOSING = frozenset({"fi", "esac", "done"})
_BETWEEN = frozenset({"then", "else", "elif", "do", "in", "{", "}", "!", "time"})
_DEEPEST = 20
_MOST_WORDS = 50_000
_MOST_TEXT = 1 << 22
"""Characters that a script's variables may become when they are replaced: doubling one forty times is an old trick."""


@dataclass(frozen=True)
class Command:
    """One command of a script."""

    words: tuple[Word, ...]
    line: int
    in_branch: bool
    """Whether it stands inside `if`, `case` or a loop, so that it may not run."""


@dataclass
class Script:
    """A script after its variables were followed."""

    commands: list[Command] = field(default_factory=list)
    variables: dict[str, list[Word]] = field(default_factory=dict)
    """Words of every variable by name; a text is one word."""
    exported: dict[str, Word] = field(default_factory=dict)


def read_commands(file: InputFile) -> Script:
    """The commands of a script in order, with variables that it assigns itself replaced by their values.

    Raises:
        InvalidInputError: a quote or bracket is not closed.
    """
    reader = _Reader(file)
    for words in _lines(scanned(file)):
        reader.line(words)
    return reader.script


def _lines(words: list[RawWord]) -> Iterator[list[RawWord]]:
    """Simple commands: what stands between `;`, `&&`, `|` and ends of lines. An array's brackets stay inside its command."""
    held: list[RawWord] = []
    in_array = False
    for word in words:
        operator = word.pieces[0].text if word.is_operator else ""
        if in_array:
            in_array = operator != ")"
            if not operator.strip() and word.is_operator:
                continue
            held.append(word)
        elif operator == "(" and held and held[-1].bare.endswith("="):
            in_array = True
            held.append(word)
        elif operator and operator not in ("<", ">", ">>", "<<", "<<-", "<<<", "2>&1", "&>", ">&"):
            yield held
            held = []
        else:
            held.append(word)
    yield held


class _Reader:
    def __init__(self, file: InputFile) -> None:
        self.script = Script()
        self._file = file
        self._left = _MOST_TEXT
        self._branches = 0
        self._in_branches: set[str] = set()
        self._words = 0

    def line(self, raw: list[RawWord]) -> None:
        # Keywords may stand before a command on its line: `then torchrun ...`.
        while raw and raw[0].bare in _BETWEEN | _OPENING | _CLOSING:
            keyword = raw[0].bare
            self._branches = max(0, self._branches + (keyword in _OPENING) - (keyword in _CLOSING))
            # `for X in ...` and `case X in` hold words, not a command.
            if keyword in ("for", "case"):
                return
            raw = raw[1:]
        if raw and raw[0].bare in _DECLARING:
            self._declared(raw)
            return
        prefix: dict[str, list[Word]] = {}
        while raw and (match := _ASSIGNED.match(_start(raw[0]))):
            name, value, raw = self._assignment(match, raw)
            prefix[name] = value
        if not raw:
            for name, value in prefix.items():
                self._assign(name, value)
            return
        for name, value in prefix.items():
            self.script.exported[name] = _as_text(value, raw[0])
        words = tuple(word for each in raw if not each.is_operator for word in self._expanded(each))
        self._spend(words, raw[0].line)
        self._words += len(words)
        if words and self._words <= _MOST_WORDS:
            self.script.commands.append(Command(words, raw[0].line, self._branches > 0))

    def _spend(self, words: Sequence[Word], line: int) -> None:
        """Counts what variables have become, before it is kept or joined any further."""
        self._left -= sum(len(word.text) + 1 for word in words)
        if self._left < 0:
            raise unreadable(
                self._file, line, f"becomes more than {_MOST_TEXT >> 20} MiB when its variables are replaced"
            )

    def _declared(self, raw: list[RawWord]) -> None:
        exports, rest = raw[0].bare == "export", raw[1:]
        while rest:
            match = _ASSIGNED.match(_start(rest[0]))
            if match is None:
                name = rest[0].bare
                if exports and name in self.script.variables:
                    self.script.exported[name] = _as_text(self.script.variables[name], rest[0])
                rest = rest[1:]
                continue
            name, value, rest = self._assignment(match, rest)
            self._assign(name, value)
            if exports and name in self.script.variables:
                self.script.exported[name] = _as_text(self.script.variables[name], raw[0])

    def _assignment(self, match: re.Match[str], raw: list[RawWord]) -> tuple[str, list[Word], list[RawWord]]:
        """Name and words of the assignment that `raw` starts with, and what follows it."""
        name, appends, first = match.group(1), bool(match.group(2)), raw[0]
        kept = list(self.script.variables.get(name, ())) if appends else []
        if len(raw) > 1 and raw[1].is_operator and raw[1].pieces[0].text == "(" and first.bare.endswith("="):
            end = next((n for n, word in enumerate(raw) if word.is_operator and word.pieces[0].text == ")"), len(raw))
            words = []
            for each in raw[2:end]:
                expanded = [] if each.is_operator else self._expanded(each)
                self._spend(expanded, each.line)
                words += expanded
            return name, kept + words, raw[end + 1 :]
        pieces = (replace(first.pieces[0], text=first.pieces[0].text[match.end() :]), *first.pieces[1:])
        text, is_open, origin = self._text(RawWord(pieces, first.line, first.column + match.end()))
        at = origin or Word("", first.line, first.column + match.end())
        found = Word(text, at.line, at.column, is_open=is_open)
        self._spend([found, *kept], first.line)
        # `ARGS+=" --bf16"` on a text goes on with it, where its first line is the one that is kept.
        if kept:
            found = replace(kept[0], text=kept[0].text + text, is_open=kept[0].is_open or is_open)
        return name, [found], raw[1:]

    def _assign(self, name: str, value: list[Word]) -> None:
        if not self._branches:
            self._in_branches.discard(name)
        # The branches of one `if` cannot both be right, and nothing here can tell which one is.
        elif name in self._in_branches and _texts(value) != _texts(self.script.variables[name]):
            value = [Word(f"${name}", 0, 0, is_open=True)]
        elif name in self.script.variables:
            return
        else:
            self._in_branches.add(name)
        self.script.variables[name] = value

    def _expanded(self, raw: RawWord) -> list[Word]:
        """The words that one becomes: `"${ARGS[@]}"` and an unquoted `$ARGS` are split."""
        if len(raw.pieces) == 1 or (len(raw.pieces) == 2 and raw.pieces[0] == Piece("", quoted=True)):
            piece = raw.pieces[-1]
            match = _NAME.match(piece.text) if piece.is_variable else None
            if match and (held := self.script.variables.get(match.group(1))) is not None:
                if len(held) != 1 or "[" in piece.text:
                    return held
                if not piece.quoted:
                    return _split(held[0])
        text, is_open, origin = self._text(raw)
        at = origin or Word("", raw.line, raw.column)
        bare = not any(piece.quoted for piece in raw.pieces)
        if bare and any(piece.is_variable for piece in raw.pieces) and not is_open:
            return _split(Word(text, at.line, at.column))
        return [Word(text, at.line, at.column, is_open=is_open, is_bare=bare)]

    def _text(self, raw: RawWord, depth: int = 0) -> tuple[str, bool, Word | None]:
        """Text of a word, whether it stays open, and where its value was written if it is that of one variable."""
        found, is_open, origin = [], False, None
        for piece in raw.pieces:
            if not piece.is_variable:
                found.append(piece.text)
                continue
            value = self._value(piece.text, depth)
            if value is None:
                found.append(piece.text)
                is_open = True
            else:
                self._spend([value], raw.line)
                found.append(value.text)
                is_open |= value.is_open
                origin = value
        alone = sum(1 for piece in raw.pieces if piece.text) == 1
        return "".join(found), is_open, origin if alone and origin and origin.line else None

    def _value(self, text: str, depth: int = 0) -> Word | None:
        """The value of a `$` expression; None where only a shell could tell. A line of 0 stands for a computed value."""
        if depth > _DEEPEST:
            return None
        if match := _NAME.match(text):
            held = self.script.variables.get(match.group(1))
            return None if held is None else (held[0] if len(held) == 1 else Word(" ".join(w.text for w in held), 0, 0))
        if match := _DEFAULTED.match(text):
            held = self.script.variables.get(match.group(1))
            if held is not None and not all(word.is_open for word in held):
                return held[0]
            return self._inner(match.group(2), depth)
        if text.startswith("$((") and text.endswith("))"):
            names = re.sub(r"\$\{?([A-Za-z_]\w*)\}?|\b([A-Za-z_]\w*)\b", self._number, text[3:-2])
            value = arithmetic(names)
            return None if value is None else Word(str(value), 0, 0)
        return None

    def _number(self, match: re.Match[str]) -> str:
        held = self.script.variables.get(match.group(1) or match.group(2))
        return held[0].text if held and len(held) == 1 else "open"

    def _inner(self, text: str, depth: int) -> Word | None:
        """The value of a default, which may hold variables again."""
        words = scanned(InputFile("", text))
        if len(words) != 1:
            return Word(text, 0, 0) if not words else None
        inner, is_open, _ = self._text(words[0], depth + 1)
        return None if is_open else Word(inner, 0, 0)


def _start(word: RawWord) -> str:
    first = word.pieces[0] if word.pieces else Piece("")
    return "" if first.quoted or first.is_variable or word.is_operator else first.text


def _texts(words: list[Word]) -> list[str]:
    return [word.text for word in words]


def _as_text(words: list[Word], at: RawWord) -> Word:
    if len(words) == 1:
        return words[0]
    return Word(" ".join(word.text for word in words), at.line, at.column, is_open=any(word.is_open for word in words))


def _split(word: Word) -> list[Word]:
    """Words of a text whose variable stood without quotes, each with its own line."""
    found, line, column = [], word.line, word.column
    before, line_start = 0, -1
    for match in re.finditer(r"\S+|\n", word.text):
        if match.group() == "\n":
            before, line_start = before + 1, match.start()
        # A backslash that ended a line inside quotes is part of the text, but no word.
        if match.group() in ("\n", "\\"):
            continue
        start = match.start() - line_start
        found.append(
            replace(
                word,
                text=match.group(),
                line=line + before if line else 0,
                column=start if before else column + match.start(),
            )
        )
    return found
