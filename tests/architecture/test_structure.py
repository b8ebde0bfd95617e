"""How the house is built: few files to a room, imports that point one way, framework names in few places."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from cost_models.frameworks import FRAMEWORKS
from scripts.mutations import written_down

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("app", "cost_models", "meshwright", "planner", "profiler")
MOST_FLAT = 14
"""Files of a package that lie in none of its rooms: as many as one takes in at a glance."""
MOST_NAMING = 8
"""Files outside those of the frameworks that may name one: the rules, and the list of all frameworks."""
LEAST_COMMENTED = 0.025
"""Share of source lines that are comments; the code bases that this one is held to have 3 to 6 percent."""
DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|ruff:|pragma|mypy:)")
"""Comments for tools, which explain nothing."""
LOADED_BY_PATH = "migrations"
"""Alembic reads these files itself; nothing imports them."""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    module_of(path): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if LOADED_BY_PATH not in path.parts
}


def imported(module: str) -> Iterator[str]:
    """Our modules that this one imports, at any level: a name imported from a package is its module where it is one."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in MODULES or node.module in MODULES:
                    yield name if name in MODULES else node.module


@cache
def imports() -> dict[str, set[str]]:
    """What each module imports. Not a constant: every process of a run would read all files to collect the tests."""
    return {module: set(imported(module)) - {module} for module in MODULES}


def room_of(module: str, folder: str) -> str:
    """The part of the folder that a module lies in: one of its folders or files."""
    return ".".join(module.split(".")[: folder.count(".") + 2])


def rooms(folder: str) -> dict[str, set[str]]:
    """Which parts of a folder import which others of it; its `__init__` is none of them."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, others in imports().items():
        inside = {room_of(other, folder) for other in others if other.startswith(f"{folder}.")}
        if module.startswith(f"{folder}."):
            found[room_of(module, folder)] |= inside - {room_of(module, folder)}
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of the graph, empty where it has none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("package", PACKAGES)
def test_few_files_lie_flat(package: str) -> None:
    assert len([path for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]) <= MOST_FLAT


def test_no_two_modules_import_each_other_by_any_way() -> None:
    assert circle(imports()) == []


FOLDERS = {module.rpartition(".")[0] for module in MODULES if "." in module}


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_no_arrow_between_rooms_points_up(folder: str) -> None:
    """Inside each folder its parts can be stacked so that each imports only what lies below it."""
    assert circle(rooms(folder)) == []


def test_circles_are_found() -> None:
    assert sorted(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == ["b", "b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def texts_used(path: Path) -> list[str]:
    """String constants of a module but for docstrings, which may explain any framework."""
    tree = ast.parse(path.read_text())
    spoken = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken
    ]


def test_frameworks_are_named_in_few_files() -> None:
    """Adding one is a file in `cost_models/frameworks/`, rules where it refuses something, and an exporter."""
    own = (ROOT / "cost_models" / "frameworks", ROOT / "planner" / "export")
    naming = [
        module
        for module, path in MODULES.items()
        if not any(path.is_relative_to(folder) for folder in own) and FRAMEWORKS.keys() & set(texts_used(path))
    ]
    assert "planner.rules.pipeline" in naming
    assert len(naming) <= MOST_NAMING, naming


def comments(text: str) -> int:
    """Lines that are a comment and nothing else; directives do not count."""
    return sum(line.startswith("#") and not DIRECTIVE.match(line) for line in map(str.strip, text.splitlines()))


def test_the_code_says_why_it_is_as_it_is() -> None:
    texts = [path.read_text() for path in MODULES.values()]
    assert sum(map(comments, texts)) >= LEAST_COMMENTED * sum(len(text.splitlines()) for text in texts)


def test_directives_and_code_are_no_comments() -> None:
    assert (
        comments("# Why.\nx = 1  # beside code\n    # Because.\n# fmt: skip\n#: noqa is said here\n# noqa: E501\n") == 3
    )


def test_every_survivor_can_still_be_applied() -> None:
    """What was written down once is tried again as the sources stand: each text is there, in one place."""
    survivors = written_down(ROOT / "scripts" / "survivors.json", ROOT)
    assert len(survivors) > 30
    for mutation in survivors:
        text = (ROOT / mutation.path).read_text()
        assert mutation.applied(text) != text, mutation


def test_every_test_that_notices_a_survivor_exists() -> None:
    for entry in json.loads((ROOT / "scripts" / "survivors.json").read_text()):
        for killer in entry.get("killed_by", ()):
            file, _, test = killer.partition("::")
            name = re.sub(r"\[.*", "", test.rpartition("::")[2])
            assert f"def {name}(" in (ROOT / file).read_text(), killer


def reached_into(path: Path) -> Iterator[str]:
    """Private names of ours that a test imports or reads, and objects of ours that it replaces."""
    tree = ast.parse(path.read_text())
    ours = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            ours |= {alias.asname or alias.name for alias in node.names}
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours:
            if re.match(r"_[^_]", node.attr):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("monkeypatch.setattr", "monkeypatch.setitem"):
            target = node.args[0]
            root = str(target.value) if isinstance(target, ast.Constant) else ast.unparse(target)
            if root.split(".")[0] in ours | set(PACKAGES):
                yield ast.unparse(node)


def test_tests_use_public_names_and_replace_nothing_of_ours() -> None:
    """What a test cannot reach from outside, no user can reach either; where it matters the code offers a parameter."""
    found = {path.name: list(reached_into(path)) for path in sorted((ROOT / "tests").rglob("*.py"))}
    assert {name: names for name, names in found.items() if names} == {}


def test_what_tests_reach_into_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(
        "from planner.plan import _response\nfrom planner.search import exhaustive\nexhaustive._limit\n"
        "monkeypatch.setattr(exhaustive, 'MAX', 1)\nmonkeypatch.setattr('planner.plan.search', None)\n"
        "monkeypatch.setattr(sys, 'stdin', None)\n"
    )
    assert sorted(reached_into(file)) == [
        "_response", "exhaustive._limit", "monkeypatch.setattr('planner.plan.search', None)",
        "monkeypatch.setattr(exhaustive, 'MAX', 1)",
    ]  # fmt: skip
