"""What a shell script would run, as far as it can be told without running it: commands with their words, and the environment.

A script is read as if it were started without arguments and with nothing set in the environment, which is what `${TP:-4}` means by its
default. A branch whose condition can be told that way counts or does not. Where it cannot be told, what the branch
sets stays open if the name has another value elsewhere, and options that it adds stay open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.export.formats.documents import unreadable
from planner.export.formats.shell_branches import FUNCTION, Branches, Listed, listed
from planner.export.formats.shell_texts import (
    as_text,
    is_unset,
    joined_words,
    split_text,
    texts,
    with_addition_open,
    word_of,
)
from planner.export.formats.shell_words import Part, Piece, RawWord, Word, arithmetic, scanned
from planner.export.settings import InputFile

_ASSIGNED = re.compile(r"^([A-Za-z_]\w*)(\+?)=")
_NAME = re.compile(r"^\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?$")
_ARRAY = re.compile(r"^\$\{[A-Za-z_]\w*\[[@*]\]\}$")
_DEFAULTED = re.compile(r"^\$\{([A-Za-z_]\w*|\d+)(:?)([-=+])(.*)\}$", re.DOTALL)
_DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_SHELLS = frozenset({"sh", "bash", "zsh", "/bin/sh", "/bin/bash", "/usr/bin/bash"})
_STARTING = frozenset({"exec", "eval", "nohup", "command", "time", "sudo"})
"""Commands that start the one behind them."""
_JOINING = frozenset({"&&", "||", ";", "|", "&"})
_DEEPEST = 20
_MOST_WORDS = 50_000
_MOST_TEXT = 1 << 22
"""Characters that a script's variables may become when they are replaced: doubling one forty times is an old trick."""
_WORD = 40
"""What a word counts beside its characters, since an array of short words is doubled just as well."""


@dataclass(frozen=True)
class Command:
    """One command of a script."""

    words: tuple[Word, ...]
    line: int
    in_branch: bool
    """Whether it may not run, since it stands in a branch or loop whose condition is not known."""


@dataclass(frozen=True)
class HereDocument:
    """A text that a script writes into a file."""

    text: Word
    target: str
    """The file's name; empty where it goes elsewhere."""


@dataclass
class Script:
    """A script after its variables were followed."""

    commands: list[Command] = field(default_factory=list)
    variables: dict[str, list[Word]] = field(default_factory=dict)
    """Words of every variable by name; a text is one word."""
    exported: dict[str, Word] = field(default_factory=dict)
    documents: list[HereDocument] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    """Names of variables whose values stand in commands or in other variables."""


def read_commands(file: InputFile) -> Script:
    """The commands of a script in order, with variables that it assigns itself replaced by their values.

    Raises:
        InvalidInputError: a quote or bracket is not closed, or its variables become too long.
    """
    reader = _Reader(file)
    for each in listed(scanned(file)):
        reader.line(each)
    return reader.script


class _Reader:
    def __init__(self, file: InputFile) -> None:
        self.script = Script()
        self._file = file
        self._left = _MOST_TEXT
        self._branches = Branches(self._tested)
        self._in_branches: set[str] = set()
        self._functions: set[str] = set()
        self._words = 0

    def line(self, given: Listed) -> None:
        if given.ender == FUNCTION:
            # What a function does is read where it stands, as if it were called there.
            self._functions.add(given.words[-1].bare)
            return
        raw = self._branches.entered(given)
        if not raw or self._branches.runs is False:
            return
        if raw[0].bare in _DECLARING:
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
            self.script.exported[name] = self._exported(value, raw[0])
        words = [word for each in _without_redirections(raw) for word in self._expanded(each)]
        self._spend(words, raw[0].line)
        self._words += len(words)
        self._note_documents(raw)
        # More words than that are no launch script, and each costs memory.
        for command in _started(words):
            if self._words <= _MOST_WORDS and command[0].text not in self._functions:
                self.script.commands.append(Command(command, raw[0].line, self._branches.runs is None))

    def _note_documents(self, raw: Sequence[RawWord]) -> None:
        for position, each in enumerate(raw):
            if each.document is not None:
                parts = self._parts(RawWord(each.document, each.line, 1))
                self._spend([word_of(parts, each)], each.line)
                named = [n for n in range(position) if raw[n].is_operator and raw[n].pieces[0].text in (">", ">>")]
                target = word_of(self._parts(raw[named[-1] + 1]), each).text if named else ""
                self.script.documents.append(HereDocument(word_of(parts, each), target))

    def _spend(self, words: Iterable[Word], line: int) -> None:
        """Counts what variables have become, before it is kept or joined any further."""
        self._left -= sum(len(word.text) + _WORD for word in words)
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
                    self.script.exported[name] = self._exported(self.script.variables[name], rest[0])
                rest = rest[1:]
                continue
            name, value, rest = self._assignment(match, rest)
            self._assign(name, value)
            if exports and name in self.script.variables:
                self.script.exported[name] = self._exported(self.script.variables[name], raw[0])

    def _exported(self, words: list[Word], at: RawWord) -> Word:
        is_open = self._branches.runs is None or any(word.is_open for word in words)
        return replace(as_text(words, at), is_open=is_open)

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
        head = first.pieces[0]
        cut = replace(head, text=head.text[match.end() :], column=head.column + match.end())
        value = RawWord((cut, *first.pieces[1:]), first.line, first.column + match.end())
        parts = self._parts(value)
        # `ARGS+=" --bf16"` on a text goes on with it.
        found = word_of([*kept[0].stretches, *parts] if kept else parts, value)
        self._spend([found, *kept], first.line)
        return name, [found], raw[1:]

    def _assign(self, name: str, value: list[Word]) -> None:
        before = self.script.variables.get(name)
        if self._branches.runs is not None:
            self._in_branches.discard(name)
        elif before is None:
            self._in_branches.add(name)
            value = [
                replace(each, is_open=True) if each.text.lstrip(" \t\n\\").startswith("-") else each for each in value
            ]
        else:
            # `options="$options --fp16"` in a branch leaves the older options as they are.
            added = with_addition_open(before, value)
            if added is not None:
                value = added
            elif texts(value) == texts(before) or (
                any(each.is_open for each in value) and name not in self._in_branches
            ):
                # What arguments of the script would change is as it is without arguments.
                return
            else:
                value = [Word(f"${name}", 0, 0, is_open=True)]
        self.script.variables[name] = value

    def _tested(self, raw: RawWord) -> tuple[str, bool | None]:
        """Text of an operand of a test, and whether it is known: None where it is known to be empty without arguments."""
        parts = [part for piece in raw.pieces for part in self._parts(RawWord((piece,), raw.line, raw.column))]
        unset = all(not part.is_open or is_unset(part.text) for part in parts)
        text = "".join("" if part.is_open and is_unset(part.text) else part.text for part in parts)
        is_open = any(part.is_open for part in parts)
        # A variable that only an unknown branch sets may be empty as well.
        names = [match.group(1) for piece in raw.pieces if piece.is_variable and (match := _NAME.match(piece.text))]
        if not self._in_branches.isdisjoint(names):
            return "", False
        return text, (None if unset else False) if is_open else True

    def _expanded(self, raw: RawWord) -> list[Word]:
        """The words that one becomes: `"${ARGS[@]}"` and what is not in quotes are split."""
        fields: list[list[Part]] = [[]]
        # A word in quotes stays a word, even if it becomes empty.
        keeps = False
        for piece in raw.pieces:
            held = self._held(piece)
            if held is not None and (_ARRAY.match(piece.text) or len(held) > 1):
                several = [each for word in held for each in ([word] if piece.quoted else split_text(word))]
                for number, word in enumerate(several):
                    if number:
                        fields.append([])
                    fields[-1] += word.stretches
                continue
            parts = self._piece_parts(piece, raw)
            keeps |= piece.quoted and (held is None or bool(parts))
            resolved = piece.is_variable and not (len(parts) == 1 and parts[0].text == piece.text and parts[0].is_open)
            if not resolved or piece.quoted:
                fields[-1] += parts
                continue
            for number, word in enumerate(split_text(word_of(parts, raw))):
                if number or (parts[0].text[:1].isspace() and fields[-1]):
                    fields.append([])
                fields[-1] += word.stretches
            if parts and parts[-1].text[-1:].isspace():
                fields.append([])
        bare = not any(piece.quoted for piece in raw.pieces)
        quoted = keeps and not any(fields)
        return [
            replace(word_of(each, raw), is_bare=bare) for each in fields if any(part.text for part in each) or quoted
        ]

    def _held(self, piece: Piece) -> list[Word] | None:
        match = _NAME.match(piece.text) if piece.is_variable else None
        return self.script.variables.get(match.group(1)) if match else None

    def _parts(self, raw: RawWord, depth: int = 0) -> list[Part]:
        return [part for piece in raw.pieces for part in self._piece_parts(piece, raw, depth)]

    def _piece_parts(self, piece: Piece, raw: RawWord, depth: int = 0) -> list[Part]:
        here = (piece.line or raw.line, piece.column or raw.column)
        if not piece.is_variable:
            return [Part(piece.text, *here)] if piece.text else []
        value = self._value(piece.text, depth)
        if value is None:
            return [Part(piece.text, *here, is_open=True)]
        self._spend([value], raw.line)
        return list(value.stretches) if value.text else []

    def _value(self, text: str, depth: int = 0) -> Word | None:
        """The value of a `$` expression; None where only a shell could tell. A line of 0 stands for a computed value."""
        if depth > _DEEPEST:
            return None
        # The script is read as if it had been started without arguments.
        if text == "$#":
            return Word("0", 0, 0)
        if match := _NAME.match(text):
            self.script.used.add(match.group(1))
            held = self.script.variables.get(match.group(1))
            return None if held is None else joined_words(held)
        if match := _DEFAULTED.match(text):
            return self._defaulted(match, depth)
        if text.startswith("$((") and text.endswith("))"):
            names = re.sub(r"\$\{?([A-Za-z_]\w*)\}?|\b([A-Za-z_]\w*)\b", self._number, text[3:-2])
            value = arithmetic(names)
            return None if value is None else Word(str(value), 0, 0)
        return None

    def _defaulted(self, match: re.Match[str], depth: int) -> Word | None:
        name, colon, kind, default = match.groups()
        held = self.script.variables.get(name)
        known = held is not None and not all(word.is_open for word in held) and not (colon and not "".join(texts(held)))
        if kind == "+":
            return self._inner(default, depth) if known else None if held else Word("", 0, 0)
        if known and held is not None:
            return joined_words(held)
        inner = self._inner(default, depth)
        if kind == "=" and inner is not None:
            self._assign(name, [inner])
        return inner

    def _number(self, match: re.Match[str]) -> str:
        held = self.script.variables.get(match.group(1) or match.group(2))
        return held[0].text if held and len(held) == 1 and not held[0].is_open else "open"

    def _inner(self, text: str, depth: int) -> Word | None:
        """The value of a default, which may hold variables again."""
        words = scanned(InputFile("", text))
        if len(words) != 1:
            return Word(text, 0, 0) if not words else None
        parts = [replace(part, line=0) for part in self._parts(words[0], depth=depth + 1)]
        found = word_of(parts, RawWord((), 0, 0))
        return None if found.is_open else replace(found, parts=())


def _without_redirections(raw: Sequence[RawWord]) -> Iterator[RawWord]:
    """The words of a command without the files that it reads and writes."""
    named = False
    for each in raw:
        if each.is_operator:
            named = each.document is None and each.pieces[0].text != "2>&1"
        elif named:
            named = False
        else:
            yield each


def _start(word: RawWord) -> str:
    first = word.pieces[0] if word.pieces else Piece("")
    return "" if first.quoted or first.is_variable or word.is_operator else first.text


def _started(words: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    """The commands that one starts: itself, without `exec` and its like, or those of `bash -c "..."`."""
    while words and words[0].text in _STARTING:
        words = words[1:]
        if len(words) == 1 and re.search(r"\s", words[0].text):
            words = split_text(words[0])
    for position, word in enumerate(words[:-2]):
        if word.text in _SHELLS and re.fullmatch(r"-\w*c", words[position + 1].text):
            yield from _inside(words[:position], words[position + 2])
            return
    if words:
        yield tuple(words)


def _inside(before: Sequence[Word], text: Word) -> Iterator[tuple[Word, ...]]:
    """The commands of a text that a shell is handed, behind the words that start this shell."""
    found: list[Word] = []
    for word in split_text(text):
        bare = word.text.strip("'\"").rstrip(";")
        if word.text in _JOINING or not bare:
            if found:
                yield tuple(found)
            found = []
            continue
        found.append(replace(word, text=bare))
        if word.text.endswith(";"):
            yield tuple(found)
            found = []
    if before or found:
        yield (*before, *found)
