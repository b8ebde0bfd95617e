"""Small mutations of the sources, one at a time, each against the tests that run the mutated line: which ones go unnoticed?

    python -m scripts.mutants cover                  # once: runs the tests, and notes which of them run which line (minutes)
    python -m scripts.mutants run --count 60         # draws mutations, prints killed and survived, exit code 1 below --least
    python -m scripts.mutants again FILE.json        # mutations written down before: [{"path", "old", "new"}, ...]

A mutation swaps a comparison, an operator, `min` and `max`, `and` and `or`, or changes a number. The checkout is left alone:
tests run in a copy. A mutation that changes nothing a user can see (an equivalent one) counts as survived all the same.
Needs pytest-cov beside the development tools.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".mutants"
SHARES = {"cost_models": 24, "planner": 18, "profiler": 6, "app": 12}
"""How many of 60 mutations are drawn from each package, roughly by what an error there costs a user."""
LEFT_OUT = ("migrations", "api/pages", "constants.py", "presets")
"""Data and generated files: a changed constant is a question for the accuracy scores, not for a test."""
TESTS_S = 120.0
"""Seconds that the tests of one mutation may take; the quickest ones are tried first."""
COPIED = (
    "app",
    "benchmarks",
    "cost_models",
    "data",
    "docs",
    "examples",
    "meshwright",
    "planner",
    "profiler",
    "scripts",
    "tests",
)
SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Add: "-", ast.Sub: "+",
    ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.And: "or", ast.Or: "and",
}  # fmt: skip
SPELLED: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Add: "+", ast.Sub: "-",
    ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.And: "and", ast.Or: "or",
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one file's text, at a line and column that start from 1 and 0."""

    path: str
    line: int
    column: int
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The file's text with this change."""
        lines = text.splitlines(keepends=True)
        row = lines[self.line - 1]
        assert row[self.column :].startswith(self.old), f"{self.path}:{self.line} does not read {self.old!r}"
        lines[self.line - 1] = row[: self.column] + self.new + row[self.column + len(self.old) :]
        return "".join(lines)


def mutations_of(path: str, text: str) -> Iterator[Mutation]:
    """Every mutation of a source file."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            yield from _swap(path, lines, node.ops[0], after=node.left, before=node.comparators[0])
        elif isinstance(node, ast.BinOp):
            yield from _swap(path, lines, node.op, after=node.left, before=node.right)
        elif isinstance(node, ast.BoolOp):
            yield from _swap(path, lines, node.op, after=node.values[0], before=node.values[1])
        elif isinstance(node, ast.Attribute | ast.Name):
            yield from _renamed(path, lines, node)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield from _changed_number(path, lines, node)


def _swap(path: str, lines: list[str], op: ast.AST, *, after: ast.expr, before: ast.expr) -> Iterator[Mutation]:
    """The operator that stands between two operands, where both are on one line."""
    if type(op) not in SWAPS or after.end_lineno != before.lineno or after.end_col_offset is None:
        return
    row, old = lines[before.lineno - 1], SPELLED[type(op)]
    column = row.find(old, after.end_col_offset, before.col_offset)
    if column >= 0 and row.isascii():
        yield Mutation(path, before.lineno, column, old, SWAPS[type(op)])


def _renamed(path: str, lines: list[str], node: ast.Attribute | ast.Name) -> Iterator[Mutation]:
    name = node.attr if isinstance(node, ast.Attribute) else node.id
    if name in NAMES and node.end_col_offset is not None and node.end_lineno and lines[node.end_lineno - 1].isascii():
        yield Mutation(path, node.end_lineno, node.end_col_offset - len(name), name, NAMES[name])


def _changed_number(path: str, lines: list[str], node: ast.Constant) -> Iterator[Mutation]:
    row = lines[node.lineno - 1]
    old = row[node.col_offset : node.end_col_offset]
    if row.isascii() and node.lineno == node.end_lineno:
        assert isinstance(node.value, int | float)
        yield Mutation(
            path, node.lineno, node.col_offset, old, str(node.value + 1 if abs(node.value) < 10 else node.value * 1.5)
        )


def cover() -> int:
    """Runs the tests once and keeps which of them run which line, and how long each takes."""
    KEPT.mkdir(exist_ok=True)
    packages = [f"--cov={name}" for name in SHARES]
    command = [
        sys.executable, "-m", "pytest", "-q", "--numprocesses", "auto", *packages, "--cov-context=test", "--cov-report=",
        f"--junit-xml={KEPT / 'durations.xml'}", "-o", "junit_family=xunit1",
    ]  # fmt: skip
    return subprocess.run(
        command, cwd=ROOT, check=False, env=os.environ | {"COVERAGE_FILE": str(KEPT / "coverage")}
    ).returncode


class Covered:
    """Which tests run a line, quickest first."""

    def __init__(self) -> None:
        from coverage import CoverageData

        self.data = CoverageData(str(KEPT / "coverage"))
        self.data.read()
        self.files = {str(Path(file).relative_to(ROOT)): file for file in self.data.measured_files()}
        cases = ElementTree.parse(KEPT / "durations.xml").iter("testcase")  # noqa: S314 - written by our own run
        self.seconds = {f"{case.get('file')}::{case.get('name')}": float(case.get("time", 0)) for case in cases}

    def tests(self, path: str, line: int) -> list[str]:
        """Tests that run this line, as far as they fit into TESTS_S together."""
        if path not in self.files:
            return []
        named = self.data.contexts_by_lineno(self.files[path]).get(line, [])
        ids = {name.split("|")[0] for name in named if name}
        ordered = sorted(ids, key=lambda name: self.seconds.get(name.split("[")[0], self.seconds.get(name, 1.0)))
        chosen, total = [], 0.0
        for name in ordered:
            total += self.seconds.get(name, 1.0)
            if chosen and total > TESTS_S:
                break
            chosen.append(name)
        return chosen


def drawn(count: int, *, seed: int, covered: Covered) -> list[Mutation]:
    """A sample of mutations on lines that tests run; every package has its share."""
    draw = Random(seed)  # noqa: S311 - equal seeds draw equal mutations
    chosen: list[Mutation] = []
    for package, share in SHARES.items():
        files = [
            file for file in sorted((ROOT / package).rglob("*.py")) if not any(part in str(file) for part in LEFT_OUT)
        ]
        found = []
        for file in files:
            path = str(file.relative_to(ROOT))
            found += [each for each in mutations_of(path, file.read_text()) if covered.tests(path, each.line)]
        chosen += draw.sample(found, min(len(found), round(count * share / sum(SHARES.values()))))
    return chosen


def written_down(file: Path) -> list[Mutation]:
    """Mutations of a file: each replaces the one place where its path reads `old`."""
    found = []
    for entry in json.loads(file.read_text()):
        text = (ROOT / entry["path"]).read_text()
        assert text.count(entry["old"]) == 1, f"{entry['path']} reads {entry['old']!r} {text.count(entry['old'])} times"
        before = text[: text.index(entry["old"])]
        column = len(before) - (before.rfind("\n") + 1)
        found.append(Mutation(entry["path"], before.count("\n") + 1, column, entry["old"], entry["new"]))
    return found


def survives(mutation: Mutation, copy: Path, tests: Sequence[str]) -> bool:
    """Whether these tests pass all the same."""
    file = copy / mutation.path
    text = file.read_text()
    file.write_text(mutation.applied(text))
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        done = subprocess.run(command, cwd=copy, check=False, capture_output=True, timeout=4 * TESTS_S)
    except subprocess.TimeoutExpired:
        return False  # a loop without an end is noticed
    finally:
        file.write_text(text)
    return done.returncode == 0


def run(mutations: Sequence[Mutation], covered: Covered) -> dict[str, Any]:
    """Tries all of them in a copy of the checkout; prints each as it goes."""
    survived = []
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DATA_LICENSES", "run", "test"):
            shutil.copy(ROOT / file, copy / file)
        for mutation in mutations:
            tests = covered.tests(mutation.path, mutation.line)
            lives = not tests or survives(mutation, copy, tests)
            survived += [mutation] * lives
            what = f"{mutation.path}:{mutation.line} {mutation.old!r} -> {mutation.new!r}"
            print(f"{'SURVIVED' if lives else 'killed  '} {what} ({len(tests)} tests)", flush=True)
    killed = len(mutations) - len(survived)
    print(f"{killed} of {len(mutations)} killed ({killed / max(len(mutations), 1):.0%})")
    return {"count": len(mutations), "killed": killed, "survived": [asdict(each) for each in survived]}


def main(arguments: list[str] | None = None) -> int:
    """Exit code 1 where fewer mutations are killed than asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=("cover", "run", "again"))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.9, help="share that must be killed")
    asked = parser.parse_args(arguments)
    if asked.act == "cover":
        return cover()
    covered = Covered()
    mutations = (
        written_down(asked.file) if asked.act == "again" else drawn(asked.count, seed=asked.seed, covered=covered)
    )
    result = run(mutations, covered)
    return int(result["killed"] < asked.least * result["count"])


if __name__ == "__main__":
    sys.exit(main())
