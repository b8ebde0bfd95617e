"""Small changes of source code that a test should notice: one comparison, operator, number, choice or version at a time.

This module knows only text and syntax trees. `scripts.mutants` decides which tests are run against a change.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# The neighbour of each operator rather than its opposite: `<` for `<=` is the mistake that people make, and only a test at the exact
# limit notices it.
SWAPS: Mapping[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
"""The text of each operator, and the text that takes its place."""
NAMES: Mapping[str, str] = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin",
    "any": "all", "all": "any", "floor": "ceil", "ceil": "floor", "median": "max",
}  # fmt: skip
"""Functions, and their twins that take the same arguments."""
SMALLEST, LARGEST = 1e-4, 1e12
"""Numbers outside these bounds are allowances for rounding or stand for infinity, and half as much again changes nothing."""
_VERSION = re.compile(r"\d+(\.\d+)+|20\d\d(-\d\d)?")
_BOUNDS = re.compile(r"since|since_version|until|before|.*(_since|_until|_until_month|_SINCE|_UNTIL)|until_month")
"""Names of arguments and constants that hold the first release, or month, with another behaviour."""
_PLACES = {"0": "-1", "-1": "0"}
"""The first place for the last, and the other way round."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of a file's text, at a line that counts from 1 and a column that counts from 0."""

    path: str
    line: int
    column: int
    old: str
    new: str
    killed_by: tuple[str, ...] = ()
    """Tests that are known to notice the change."""

    def applied(self, text: str) -> str:
        """The file's text with this change. `old` may extend over several lines."""
        lines = text.splitlines(keepends=True)
        at = sum(map(len, lines[: self.line - 1])) + self.column
        assert text.startswith(self.old, at), f"{self.path}:{self.line} does not read {self.old!r}"
        return text[:at] + self.new + text[at + len(self.old) :]

    def becomes(self, text: str) -> str:
        """The line as it reads with this change."""
        return self.applied(text).splitlines()[self.line - 1].strip()

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.old!r} -> {self.new!r}"


def mutations_of(path: str, text: str) -> Iterator[Mutation]:
    """Every mutation of a source file, in the order of its syntax tree.

    Left out: f-strings (Python 3.11 does not know where their parts are), text that is put together, and lines with letters
    beyond ASCII (the tree counts bytes).
    """
    lines = text.splitlines()
    for node in _nodes(ast.parse(text)):
        for line, column, old, new in _changes(node, lines):
            row = lines[line - 1]
            if row.isascii() and row.startswith(old, column):
                yield Mutation(path, line, column, old, new)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those inside f-strings and the sizes of caches."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, ast.JoinedStr) and not (isinstance(child, ast.keyword) and child.arg == "maxsize"):
            yield child
            yield from _nodes(child)


_Change = tuple[int, int, str, str]
"""Line, column, old, new."""


def _changes(node: ast.AST, lines: list[str]) -> Iterator[_Change]:
    yield from _changed_operators(node, lines)
    if isinstance(node, ast.Call):
        yield from _renamed(node.func)
    elif isinstance(node, ast.Subscript):
        yield from _other_place(node.slice)
    elif isinstance(node, ast.keyword | ast.Assign):
        for bound in _bounds(node):
            yield from _next_version(bound, lines)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield from _changed_number(node, lines)


def _changed_operators(node: ast.AST, lines: list[str]) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        yield from _swapped(lines, node.ops[0], after=node.left, before=node.comparators[0])
    elif isinstance(node, ast.BinOp) and not (_is_text(node.left) or _is_text(node.right)):
        yield from _swapped(lines, node.op, after=node.left, before=node.right)
    elif isinstance(node, ast.BoolOp):
        yield from _swapped(lines, node.op, after=node.values[0], before=node.values[1])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.lineno, node.col_offset, "not ", ""


def _is_text(node: ast.expr) -> bool:
    """Whether an operator joins text, paths or lists here, where any other operator would only raise."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr | ast.List) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _swapped(lines: list[str], op: ast.AST, *, after: ast.expr, before: ast.expr) -> Iterator[_Change]:
    """The operator that stands between two operands, where both are on one line."""
    # The tree does not say where an operator stands, so it is looked for between its operands.
    if type(op) not in SWAPS or after.end_lineno != before.lineno or after.end_col_offset is None:
        return
    old, new = SWAPS[type(op)]
    column = lines[before.lineno - 1].find(old, after.end_col_offset, before.col_offset)
    if column >= 0:
        yield before.lineno, column, old, new


def _renamed(called: ast.expr) -> Iterator[_Change]:
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    if name in NAMES and called.end_lineno is not None and called.end_col_offset is not None:
        yield called.end_lineno, called.end_col_offset - len(name), name, NAMES[name]


def _other_place(index: ast.expr) -> Iterator[_Change]:
    spelled = ast.unparse(index)
    if spelled in _PLACES:
        yield index.lineno, index.col_offset, spelled, _PLACES[spelled]


def _bounds(node: ast.keyword | ast.Assign) -> list[ast.expr]:
    """Values that an argument or a constant of such a name holds."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    name = node.arg if isinstance(node, ast.keyword) else target.id if isinstance(target, ast.Name) else None
    if name is None or not _BOUNDS.fullmatch(name):
        return []
    return node.value.values if isinstance(node.value, ast.Dict) else [node.value]


def _next_version(value: ast.expr, lines: list[str]) -> Iterator[_Change]:
    """The release, or month, after the one that a bound names."""
    if not (isinstance(value, ast.Constant) and isinstance(value.value, str) and _VERSION.fullmatch(value.value)):
        return
    text = value.value
    last = re.split(r"[.-]", text)[-1]
    before = text[: len(text) - len(last)]
    later = f"{before}{int(last) + 1:0{len(last)}}"
    if before.endswith("-") and last == "12":
        later = f"{int(before[:-1]) + 1}-01"
    quote = lines[value.lineno - 1][value.col_offset]
    yield value.lineno, value.col_offset, f"{quote}{text}{quote}", f"{quote}{later}{quote}"


def _changed_number(node: ast.Constant, lines: list[str]) -> Iterator[_Change]:
    """The next whole number, or for large and fractional ones half as much again."""
    value = node.value
    assert isinstance(value, int | float)
    if value and not SMALLEST <= abs(value) <= LARGEST:
        return
    # A small whole number counts something, so the next one is the likely mistake. A large one is a size, and one more of it would
    # hide in every tolerance.
    if isinstance(value, int):
        changed: float = value + 1 if value < 10 else value * 3 // 2
    else:
        changed = 1.5 * value or 1.0
    yield node.lineno, node.col_offset, lines[node.lineno - 1][node.col_offset : node.end_col_offset], repr(changed)


def written_down(file: Path, root: Path) -> list[Mutation]:
    """Mutations of a file `[{"path", "old", "new"}, ...]`, each of which replaces the only place where its path reads `old`.

    An entry may state `line` and `column` if there are several such places, and `killed_by`, the tests that notice it.
    """
    found = []
    for entry in json.loads(file.read_text()):
        place = entry.get("line"), entry.get("column")
        if place == (None, None):
            place = _only_place((root / entry["path"]).read_text(), entry["old"], path=entry["path"])
        tests = tuple(entry.get("killed_by", ()))
        found.append(Mutation(entry["path"], *place, entry["old"], entry["new"], killed_by=tests))
    return found


def _only_place(text: str, old: str, *, path: str) -> tuple[int, int]:
    """Line and column of the only place of some text."""
    times = text.count(old)
    assert times == 1, f"{path} reads {old!r} {times} times"
    before = text[: text.index(old)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1)
