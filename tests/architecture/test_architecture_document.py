"""docs/ARCHITECTURE.md is held to the code: paths exist, names are defined where it says, and no room is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
PACKAGES = ("app", "cost_models", "planner", "profiler")
PATH = re.compile(rf"(?<![\w/])(?:{'|'.join((*PACKAGES, 'meshwright', 'tests'))})/[\w./-]*")
NODE = re.compile(r'\["([\w./-]+)<br/>(\w+)"\]')
ROW = re.compile(r"^\| (?P<question>[^|]+) \| (?P<files>`[^|]+`) \| (?P<names>`[^|]+`) \|$", re.MULTILINE)
MOST_FILES = 2
"""Files that one has to open to answer a question of the table."""


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def names_defined(file: str) -> set[str]:
    """Functions, classes, methods, fields and constants of a module; the keys of a data file."""
    text = (ROOT / file).read_text()
    if not file.endswith(".py"):
        return set(re.findall(r'"([\w-]+)"\s*:', text))
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


LOOKED_UP = [(row["question"], quoted(row["files"]), quoted(row["names"])) for row in ROW.finditer(TEXT)]
NODES = [(file, name) for file, name in NODE.findall(TEXT)]


@pytest.mark.parametrize("path", sorted({path.rstrip(".") for path in PATH.findall(TEXT)}))
def test_path_exists(path: str) -> None:
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file()


@pytest.mark.parametrize(("question", "files", "names"), LOOKED_UP, ids=[question for question, _, _ in LOOKED_UP])
def test_answer_is_where_the_table_says(question: str, files: list[str], names: list[str]) -> None:
    assert len(files) <= MOST_FILES, question
    assert set(names) <= set().union(*(names_defined(file) for file in files))


@pytest.mark.parametrize(("file", "name"), NODES)
def test_step_of_a_picture_is_in_its_file(file: str, name: str) -> None:
    assert name in names_defined(file)


def test_pictures_and_table_are_read() -> None:
    """The nine look-ups and both flows are there: a change of the page's form must not empty the tests above."""
    questions = " ".join(question for question, _, _ in LOOKED_UP)
    subjects = ("bubble", "FSDP", "gated MLP", "heads", "NVLink", "columns", "retry", "80 % range", "range of memory")
    assert all(subject in questions for subject in subjects)
    assert {"profiler/bench/collectives.py", "app/service/api/v1/plans.py", "app/cli/commands/plan.py"} <= {
        file for file, _ in NODES
    }


def test_every_room_is_described() -> None:
    """Folders with modules of their own, but for migrations, which only the database tool reads."""
    rooms = {
        folder.relative_to(ROOT).as_posix() + "/"
        for package in PACKAGES
        for folder in (ROOT / package).rglob("*")
        if folder.is_dir() and any(folder.glob("*.py")) and "migrations" not in folder.parts
    }
    described = {path for path in PATH.findall(TEXT) if path.endswith("/")}
    assert rooms <= described
