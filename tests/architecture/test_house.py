"""The rules of the house that a linter does not know: imports, equation tags, unit suffixes, sizes and names of files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import meshwright
from cost_models.specs.training import Framework
from cost_models.terms import MEMORY_TERMS, TIME_TERMS

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("app", "cost_models", "meshwright", "planner", "profiler")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
OURS = [*SOURCES, *sorted((ROOT / "scripts").glob("*.py")), *sorted((ROOT / "benchmarks").glob("*.py"))]
TAG = r"[FMCOPT]-\d+"
HUMAN_UNITS = re.compile(r"_(ms|us|ns|kb|mb|gb|tb|kib|mib|gib|tib|gbps|gbit|tflops|gflops|percent|pct)(_[A-Z]+)?$")
BOUNDARIES = (
    "app/",  # tables, reports and the service's answers
    "cost_models/inputs/",  # readers of model, cluster and training documents
    "cost_models/presets/",
    "planner/schemas/",
)
"""Where human units may appear: in what people type and read. Everything behind these folders is in base SI units."""
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 80


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_import_contracts_hold() -> None:
    """The contracts of pyproject.toml: app -> planner -> cost_models <- profiler, and heavy libraries kept out of each."""
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr


def external_imports(path: Path) -> set[str]:
    """Top-level package of everything that the module imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_heavy_libraries_live_in_one_place() -> None:
    """A library that one module wraps can be replaced there."""
    homes = {
        "ortools": ("planner/splits/",),
        "optuna": ("planner/search/",),
        "fastapi": ("app/",),
        "sqlalchemy": ("app/",),
        "torch": ("profiler/",),
    }
    misplaced = [
        f"{relative(path)} imports {library}"
        for path in SOURCES
        for library in external_imports(path) & homes.keys()
        if not relative(path).startswith(homes[library])
    ]
    assert not misplaced


def test_cost_models_import_only_numpy_and_pydantic() -> None:
    allowed = set(sys.stdlib_module_names) | {"numpy", "pydantic", "pydantic_core", "cost_models"}
    foreign = {relative(p): external_imports(p) - allowed for p in SOURCES if relative(p).startswith("cost_models/")}
    assert not {path: names for path, names in foreign.items() if names}


def test_equation_tags_are_equal_in_code_and_document() -> None:
    """Every [X-n] of a docstring and every tag of a term has one entry in EQUATIONS.md, and the reverse."""
    text = (ROOT / "cost_models" / "EQUATIONS.md").read_text()
    entries = Counter(re.findall(rf"^(?:[#|-]+\s*)?\**\[?({TAG})\b", text, flags=re.MULTILINE))
    in_code = {tag for path in SOURCES for tag in re.findall(rf"\[({TAG})\]", path.read_text())}
    in_code |= {term.tag for term in (*TIME_TERMS, *MEMORY_TERMS)}
    assert in_code - entries.keys() == set(), "tags without an entry in EQUATIONS.md"
    assert entries.keys() - in_code == set(), "entries of EQUATIONS.md that no code names"
    assert [tag for tag, count in entries.items() if count > 1] == []


def test_entries_of_equations_name_the_files_that_compute_them() -> None:
    """Every entry names at least one file of cost_models, and each file that it names carries the entry's tag."""
    text = (ROOT / "cost_models" / "EQUATIONS.md").read_text()
    _, *parts = re.split(rf"^\*\*\[({TAG})\]", text, flags=re.MULTILINE)
    named = {
        tag: re.findall(
            r"`((?:calibration|corrections|hardware|layers|memory|pools|replicas|runs|step|strategies)/\w+\.py)`", body
        )
        for tag, body in zip(parts[::2], parts[1::2], strict=True)
    }
    assert [tag for tag, files in named.items() if not files] == []
    untagged = {
        (tag, file)
        for tag, files in named.items()
        for file in files
        if f"[{tag}]" not in (ROOT / "cost_models" / file).read_text()
    }
    assert untagged == set()


def names_defined(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno


def test_nothing_but_facts_and_rules_knows_a_framework_by_name() -> None:
    """What differs between frameworks is a fact of each (`cost_models.frameworks`) or a row of the rules, never a branch."""
    names = set(get_args(Framework))
    known = ("cost_models/frameworks/", "cost_models/specs/training.py", "planner/rules/", "planner/export/")
    found = [
        f"{relative(path)}:{node.lineno} {node.value!r}"
        for path in SOURCES
        if not relative(path).startswith(known)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not found


def test_names_inside_carry_base_units() -> None:
    """Milliseconds, gigabytes and percent stay in the loaders and the schemas; inside there is one unit per quantity."""
    human = [
        f"{relative(path)}:{line} {name}"
        for path in SOURCES
        if not relative(path).startswith(BOUNDARIES)
        for name, line in names_defined(ast.parse(path.read_text()))
        if HUMAN_UNITS.search(name)
    ]
    assert not human


@pytest.mark.parametrize("name", ["step_ms", "size_gb", "link_gbps", "stage_gib_NS", "bubble_percent"])
def test_human_unit_names_are_recognised(name: str) -> None:
    assert HUMAN_UNITS.search(name)


@pytest.mark.parametrize("name", ["step_time_s", "size_bytes", "link_bytes_per_s", "peak_flops_per_s", "status", "GIB"])
def test_base_unit_names_are_not(name: str) -> None:
    assert not HUMAN_UNITS.search(name)


def test_files_and_functions_stay_small() -> None:
    large = [
        f"{relative(path)}: {n} lines" for path in OURS if (n := len(path.read_text().splitlines())) > MAX_FILE_LINES
    ]
    for path in OURS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    large.append(f"{relative(path)}: {node.name} has {length} lines")
    assert not large


def test_no_module_is_a_drawer() -> None:
    """A file is named after the thing it defines."""
    drawers = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"}
    assert not [relative(path) for path in OURS if path.name in drawers or "manager" in path.name]


def test_tests_have_unique_names() -> None:
    """pytest imports test files by path; two of one name would hide each other in reports."""
    counted = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, count in counted.items() if count > 1]


def test_no_absolute_path_of_a_machine() -> None:
    """Nothing in the repository works only where it was written."""
    machine_path = re.compile(r"(?<![\w.:/-])/(?:work|root|home|Users|opt|mnt|scratch)/[\w.-]+")
    texts = {
        path: path.read_text(errors="replace")
        for path in tracked_files()
        if path.suffix in {".py", ".md", ".toml", ".json", ".jsonl", ".csv", "", ".yml", ".ini"}
        and "static" not in path.parts
    }
    found = [
        f"{relative(path)}: {match.group()}" for path, text in texts.items() for match in machine_path.finditer(text)
    ]
    assert not found


def test_changelog_tells_of_this_version() -> None:
    assert f"\n## {meshwright.__version__}" in (ROOT / "CHANGELOG.md").read_text()
