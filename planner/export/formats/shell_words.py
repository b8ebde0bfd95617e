"""The words of a shell script, with their lines, without a shell: nothing is executed.

What is followed: quotes, continued lines, comments, here-documents, assignments of texts and arrays, `${NAME:-default}` and integer
arithmetic of known numbers. Whatever else a shell would compute (`$(hostname)`, `$1`) stays as it is written and is called open.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from planner.export.formats.documents import unreadable
from planner.export.settings import InputFile


@dataclass(frozen=True)
class Part:
    """A stretch of a text after its variables were replaced, and where it is written down."""

    text: str
    line: int
    """0 where it was computed and stands nowhere."""
    column: int
    is_open: bool = False


@dataclass(frozen=True)
class Word:
    """One word of a command, or the text of a variable."""

    text: str
    line: int
    column: int
    is_open: bool = False
    """Whether a part of it depends on something that only a shell could compute."""
    is_bare: bool = True
    """Whether it was written without quotes, so that it may be a keyword or an assignment."""
    parts: tuple[Part, ...] = ()
    """Where its stretches are written down, where these are several."""

    @property
    def stretches(self) -> tuple[Part, ...]:
        """Its parts; itself where it has one alone."""
        return self.parts or (Part(self.text, self.line, self.column, self.is_open),)


@dataclass(frozen=True)
class Piece:
    """A part of a word as it is written: a text, or a `$` expression that is still to be replaced."""

    text: str
    is_variable: bool = False
    quoted: bool = False
    line: int = 0
    column: int = 0


@dataclass(frozen=True)
class RawWord:
    """A word before expansion; an operator is a word of its own."""

    pieces: tuple[Piece, ...]
    line: int
    column: int
    is_operator: bool = False
    document: tuple[Piece, ...] | None = None
    """The text of a here-document, of which this is the operator."""

    @property
    def bare(self) -> str:
        """Its text where nothing of it is quoted or a variable; "" elsewhere."""
        return "".join(p.text for p in self.pieces) if not any(p.quoted or p.is_variable for p in self.pieces) else ""


# Longer ones first, so that `&&` is not read as two `&`.
_OPERATORS = ("&&", "||", ";;", "<<<", "<<-", "<<", ">>", "2>&1", "&>", ">&", ";", "&", "|", "(", ")", "<", ">", "\n")
# One level of nesting is enough for `${A:-${B}}`; what is nested further stays open.
_DOLLAR = re.compile(r"\$(?:\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\}|[A-Za-z_]\w*|[0-9@*#?$!-])")

_PLAIN = re.compile(r"[^ \t\r\n;&|()<>'\"\\$`]+")
_DELIMITER = re.compile(r"[ \t]*([^\s;&|<>()]*)")


class _Scanner:
    def __init__(self, file: InputFile, text: str | None = None, line: int = 1) -> None:
        self.file, self.text = file, file.content if text is None else text
        self.at, self.line, self.line_start = 0, line, 0
        self._documents: list[tuple[str, bool]] = []

    def words(self) -> Iterator[RawWord]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r":
                self._forward(1)
            elif self.text.startswith(("\\\n", "\\\r\n"), self.at):
                self._forward(2 if self.text[self.at + 1] == "\n" else 3)
            elif char == "#":
                self._forward(self._end_of_line() - self.at)
            elif found := next((o for o in _OPERATORS if self.text.startswith(o, self.at)), None):
                start = (self.line, self.at - self.line_start + 1)
                self._forward(len(found))
                if found.startswith("<<") and found != "<<<":
                    self._documents.append((self._delimiter(), found == "<<-"))
                    continue
                if found == "\n":
                    yield from self._here_documents()
                yield RawWord((Piece(found),), *start, is_operator=True)
            else:
                yield self._word()
        yield from self._here_documents()

    def _word(self) -> RawWord:
        line, column, pieces = self.line, self.at - self.line_start + 1, []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|()<>":
                break
            if char == "'":
                here = self._piece("", quoted=True)
                pieces.append(replace(here, text=self._until_quote()))
            elif char == '"':
                pieces += self._double_quoted(line)
            elif char == "\\":
                if self.text.startswith(("\\\n", "\\\r\n"), self.at):
                    break
                pieces.append(self._piece(self.text[self.at + 1 : self.at + 2], quoted=True))
                self._forward(2)
            elif char in "$`":
                pieces.append(self._dollar(quoted=False))
            else:
                plain = _PLAIN.match(self.text, self.at)
                pieces.append(self._piece(plain.group() if plain else char))
                self._forward(len(pieces[-1].text))
        return RawWord(_joined(pieces), line, column)

    def _until_quote(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise unreadable(self.file, self.line, "has a quote that is not closed")
        found = self.text[self.at + 1 : end]
        self._forward(end + 1 - self.at)
        return found

    def _double_quoted(self, line: int) -> list[Piece]:
        self._forward(1)
        pieces: list[Piece] = [self._piece("", quoted=True)]
        while self.at < len(self.text):
            if self.text[self.at] == '"':
                self._forward(1)
                return pieces
            pieces += self._quoted_piece(ends='"')
        raise unreadable(self.file, line, "has a quote that is not closed")

    def _quoted_piece(self, ends: str) -> list[Piece]:
        char = self.text[self.at]
        if char == "\\" and self.text[self.at + 1 : self.at + 2] in ("\n", '"', "\\", "$", "`"):
            # A shell joins continued lines; the end of the line is kept here, since it tells words on which line they stand.
            found = self._piece(self.text[self.at + 1], quoted=True)
            self._forward(2)
        elif char in "$`":
            found = self._dollar(quoted=True)
        else:
            end = self.at + 1
            while end < len(self.text) and self.text[end] not in f"\\$`{ends}":
                end += 1
            found = self._piece(self.text[self.at : end], quoted=True)
            self._forward(end - self.at)
        return [found]

    def _piece(self, text: str, *, is_variable: bool = False, quoted: bool = False) -> Piece:
        return Piece(text, is_variable, quoted, self.line, self.at - self.line_start + 1)

    def _dollar(self, *, quoted: bool) -> Piece:
        start, here = self.at, self._piece("", is_variable=True, quoted=quoted)
        if self.text[start] == "`" or self.text.startswith("$(", start):
            self._forward(self._end_of_substitution() - start)
        elif match := _DOLLAR.match(self.text, start):
            self._forward(match.end() - start)
        else:
            self._forward(1)
            return replace(here, text="$", is_variable=False)
        return replace(here, text=self.text[start : self.at])

    def _end_of_substitution(self) -> int:
        if self.text[self.at] == "`":
            end = self.text.find("`", self.at + 1)
            if end < 0:
                raise unreadable(self.file, self.line, "has a backquote that is not closed")
            return end + 1
        depth = 0
        # Brackets inside quotes are counted as well, which a shell would not do; what is inside is never run, only passed over.
        for position in range(self.at + 1, len(self.text)):
            depth += {"(": 1, ")": -1}.get(self.text[position], 0)
            if depth == 0:
                return position + 1
        raise unreadable(self.file, self.line, "has a bracket that is not closed")

    def _delimiter(self) -> str:
        """The word that ends a here-document, as it is written."""
        match = _DELIMITER.match(self.text, self.at)
        self._forward(0 if match is None else match.end() - self.at)
        return "" if match is None else match.group(1)

    def _here_documents(self) -> Iterator[RawWord]:
        """The texts behind the end of a line, each with its operator."""
        for written, tabs in self._documents:
            name, start = re.sub(r"[\\'\"]", "", written), (self.line, self.at)
            while self.at < len(self.text):
                line = self.text[self.at : self._end_of_line()]
                if (line.lstrip("\t") if tabs else line).rstrip("\r") == name:
                    break
                self._forward(len(line) + 1)
            body = self.text[start[1] : self.at]
            self._forward(self._end_of_line() + 1 - self.at)
            pieces: tuple[Piece, ...] = (Piece(body, quoted=True, line=start[0], column=1),)
            # A quoted delimiter keeps the text from being replaced.
            if written == name:
                pieces = _Scanner(self.file, body, line=start[0]).document()
            yield RawWord((Piece("<<"),), start[0], 1, is_operator=True, document=pieces)
        self._documents = []

    def document(self) -> tuple[Piece, ...]:
        """The whole text as pieces, as the inside of double quotes is read."""
        pieces: list[Piece] = []
        while self.at < len(self.text):
            pieces += self._quoted_piece(ends="")
        return _joined(pieces)

    def _end_of_line(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _forward(self, count: int) -> None:
        passed = self.text[self.at : self.at + count]
        if newlines := passed.count("\n"):
            self.line += newlines
            self.line_start = self.at + passed.rindex("\n") + 1
        self.at += count


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Neighbouring pieces of one sort as one."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last and not piece.is_variable and not last.is_variable and last.quoted == piece.quoted:
            found[-1] = replace(last, text=last.text + piece.text)
        else:
            found.append(piece)
    return tuple(found)


def scanned(file: InputFile) -> list[RawWord]:
    """All words and operators of a script, in order."""
    return list(_Scanner(file).words())


_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_LARGEST = 1 << 62


def arithmetic(text: str) -> int | None:
    """The value of `1 + 2 * (3 / 4)` in whole numbers as a shell computes it; None where it is anything else."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> int:
    # The type is compared, since True is an int in Python; sizes are bounded, since 9**9**9 would not end (there is no power here
    # either, but products can be repeated).
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < _LARGEST:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        found = _ARITHMETIC[type(node.op)](_value(node.left), _value(node.right))
        if abs(found) < _LARGEST:
            return found
    raise ValueError
