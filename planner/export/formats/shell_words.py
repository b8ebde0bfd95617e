"""The words of a shell script, with their lines, without a shell: nothing is executed.

What is followed: quotes, continued lines, comments, assignments of texts and arrays, `${NAME:-default}` and integer arithmetic
of known numbers. Whatever else a shell would compute (`$(hostname)`, `$1`) stays as it is written and is called open.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from planner.export.formats.documents import unreadable
from planner.export.settings import InputFile


@dataclass(frozen=True)
class Word:
    """One word of a command."""

    text: str
    line: int
    column: int
    is_open: bool = False
    """Whether a part of it depends on something that only a shell could compute."""
    is_bare: bool = True
    """Whether it was written without quotes, so that it may be a keyword or an assignment."""


@dataclass(frozen=True)
class Piece:
    """A part of a word as it is written: a text, or a `$` expression that is still to be replaced."""

    text: str
    is_variable: bool = False
    quoted: bool = False


@dataclass(frozen=True)
class RawWord:
    """A word before expansion; an operator is a word of its own."""

    pieces: tuple[Piece, ...]
    line: int
    column: int
    is_operator: bool = False

    @property
    def bare(self) -> str:
        """Its text where nothing of it is quoted or a variable; "" elsewhere."""
        return "".join(p.text for p in self.pieces) if not any(p.quoted or p.is_variable for p in self.pieces) else ""


# Longer ones first, so that `&&` is not read as two `&`.
_OPERATORS = ("&&", "||", ";;", "<<<", "<<-", "<<", ">>", "2>&1", "&>", ">&", ";", "&", "|", "(", ")", "<", ">", "\n")
# One level of nesting is enough for `${A:-${B}}`; what is nested further stays open.
_DOLLAR = re.compile(r"\$(?:\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\}|[A-Za-z_]\w*|[0-9@*#?$!-])")


class _Scanner:
    def __init__(self, file: InputFile) -> None:
        self.file, self.text = file, file.content
        self.at, self.line, self.line_start = 0, 1, 0

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
                    self._skip_here_document(tabs=found == "<<-")
                yield RawWord((Piece(found),), *start, is_operator=True)
            else:
                yield self._word()

    def _word(self) -> RawWord:
        line, column, pieces = self.line, self.at - self.line_start + 1, []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;&|()<>":
                break
            if char == "'":
                pieces.append(Piece(self._until_quote(), quoted=True))
            elif char == '"':
                pieces += self._double_quoted(line)
            elif char == "\\":
                if self.text.startswith("\\\n", self.at):
                    break
                pieces.append(Piece(self.text[self.at + 1 : self.at + 2], quoted=True))
                self._forward(2)
            elif char in "$`":
                pieces.append(self._dollar(quoted=False))
            else:
                pieces.append(Piece(char))
                self._forward(1)
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
        pieces: list[Piece] = [Piece("", quoted=True)]
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self._forward(1)
                return pieces
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ("\n", '"', "\\", "$", "`"):
                # A shell joins continued lines; the end of the line is kept here, since it tells words on which line they stand.
                pieces.append(Piece(self.text[self.at + 1], quoted=True))
                self._forward(2)
            elif char in "$`":
                pieces.append(self._dollar(quoted=True))
            else:
                pieces.append(Piece(char, quoted=True))
                self._forward(1)
        raise unreadable(self.file, line, "has a quote that is not closed")

    def _dollar(self, *, quoted: bool) -> Piece:
        start = self.at
        if self.text[start] == "`" or self.text.startswith("$(", start):
            self._forward(self._end_of_substitution() - start)
        elif match := _DOLLAR.match(self.text, start):
            self._forward(match.end() - start)
        else:
            self._forward(1)
            return Piece("$", quoted=quoted)
        return Piece(self.text[start : self.at], is_variable=True, quoted=quoted)

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

    def _skip_here_document(self, *, tabs: bool) -> None:
        rest = self.text[self.at : self._end_of_line()]
        name = rest.strip().split(" ")[0].strip("'\"\\;")
        self._forward(len(rest))
        while self.at < len(self.text):
            self._forward(1)
            line = self.text[self.at : self._end_of_line()]
            self._forward(len(line))
            if (line.lstrip("\t") if tabs else line) == name:
                return

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
            found[-1] = Piece(last.text + piece.text, quoted=piece.quoted)
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
