"""Which tests run which line, from one run of the tests under coverage, and which of them could notice a change there.

Coverage is kept per test (pytest-cov calls this contexts). A line that only an import runs, such as a table or a default, belongs
to no test, or to the one test during which its module happened to be imported first. The test files that import its module or package
stand in for it, and then all tests that run anything of that module or of modules that import it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from xml.etree import ElementTree as ET

from coverage import CoverageData

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".mutants"
"""Folder for the coverage of a run, its durations and the digests of its sources; git ignores it."""
PACKAGES = ("app", "cost_models", "planner", "profiler")
OTHER_PROCESSES = ("tests/e2e", "tests/gpu")
"""Tests whose subject runs in other processes, which coverage does not see."""
TESTS_S = 120.0
"""Seconds that all tests of one mutation may have taken under coverage; the broadest and quickest are tried first."""
# What starting a test costs at least: thousands of tests that "take no time" would otherwise fit into the limit.
LEAST_S = 0.01
BROADEST = "tests/approved/"
"""Tests that compare every number of an answer, and so notice most changes; they are tried before all others."""
_DATA, _SECONDS, _DIGESTS = KEPT / "coverage", KEPT / "seconds.json", KEPT / "digests.json"
_CACHES = {"cache", "lru_cache", "cached_property"}


def cover(paths: Sequence[str] = ()) -> int:
    """Runs the tests, keeps which test runs which line and how long each takes, and returns pytest's exit code.

    Args:
        paths: tests whose coverage is added to what is kept. Without any, all tests are run and the kept coverage is replaced;
            those marked slow are left out, since no mutation would wait for them.
    """
    KEPT.mkdir(exist_ok=True)
    settings, report = KEPT / "coveragerc", KEPT / "durations.xml"
    settings.write_text(f"[run]\nrelative_files = true\nsource_pkgs = {','.join(PACKAGES)}\n")
    left_out = ["-m", "not slow", *(f"--ignore={folder}" for folder in OTHER_PROCESSES)]
    chosen = [*paths, "--cov-append"] if paths else left_out
    command = [
        sys.executable, "-m", "pytest", "-q", "--numprocesses", "auto", "--timeout", "1800", "--cov",
        f"--cov-config={settings}", "--cov-context=test", "--cov-report=", f"--junit-xml={report}",
        "-o", "junit_family=xunit1", *chosen,
    ]  # fmt: skip
    if not paths:
        _DATA.unlink(missing_ok=True)
        _SECONDS.unlink(missing_ok=True)
    # Taken before the run: a file that is edited meanwhile then counts as changed, and all of its tests are tried.
    sources = {path: digest(path) for path in sources_of(PACKAGES)}
    done = subprocess.run(command, cwd=ROOT, check=False, env=os.environ | {"COVERAGE_FILE": str(_DATA)})  # noqa: S603 - our own arguments
    known = json.loads(_SECONDS.read_text()) if _SECONDS.exists() else {}
    _SECONDS.write_text(json.dumps(known | dict(_passed(report)), indent=0))
    if not paths:
        _DIGESTS.write_text(json.dumps(sources, indent=0))
    return done.returncode


def _passed(report: Path) -> Iterator[tuple[str, float]]:
    """Name and seconds of every test that passed."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own run
        if not {part.tag for part in case} & {"failure", "error", "skipped"}:
            classes = case.get("classname", "").split(".")[len(Path(case.get("file", "")).parts) :]
            yield "::".join([case.get("file", ""), *classes, case.get("name", "")]), float(case.get("time", 0.0))


def sources_of(packages: Iterable[str]) -> list[str]:
    """Paths of the modules of these packages, relative to the checkout."""
    return sorted(str(file.relative_to(ROOT)) for name in packages for file in (ROOT / name).rglob("*.py"))


def digest(path: str) -> str:
    """SHA-256 of a file, which tells two versions of it apart."""
    return hashlib.sha256((ROOT / path).read_bytes()).hexdigest()


def _collected() -> frozenset[str]:
    """Names of the tests that there are."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603 - our own arguments
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


class Covered:
    """The tests of a line, quickest first."""

    def __init__(self, kept: Path = KEPT, *, there: frozenset[str] | None = None) -> None:
        """Reads what `cover` kept in a folder, of the tests that there still are: all that pytest collects if it is not said.

        Raises:
            SystemExit: no coverage has been kept yet.
        """
        if not (kept / _DATA.name).exists():
            raise SystemExit("run `python -m scripts.mutants cover` first")
        self._data = CoverageData(str(kept / _DATA.name))
        self._data.read()
        # A file that was renamed since is left out; the tests of its new name are those that import it.
        self._files = {path for path in self._data.measured_files() if (ROOT / path).is_file()}
        # So is a test that is there no more: pytest runs nothing at all if it is given one.
        there = _collected() if there is None else there
        seconds = json.loads((kept / _SECONDS.name).read_text())
        self._seconds = {name: float(s) for name, s in seconds.items() if name in there}
        digests = json.loads((kept / _DIGESTS.name).read_text())
        self.changed = {path for path in self._files if digests.get(path) != digest(path)}
        """Files that have changed since. Their lines may have moved, so all of their tests are tried."""

    def runs(self, path: str, line: int) -> bool:
        """Whether anything runs this line, if only an import."""
        return path in self.changed or (path in self._files and line in self._lines(path))

    def tests(self, path: str, line: int) -> list[str]:
        """Tests that could notice a change of this line: as many as fit into TESTS_S together, the broadest first, then the
        quickest; and the book's, whatever they take.
        """
        found: list[str] = []
        if path in self._files and path not in self.changed:
            found = self._ordered(self._of_lines(path, _statement_lines(path, line)))
        # What runs only once, such as a table when its module is imported or the body of a cached function, runs for whichever test
        # comes first, and coverage credits that test alone.
        at_import = is_outside_functions(_tree(path), line)
        once = not found or at_import or _is_cached(path, line)
        if once:
            importing = {name for file in importing_tests(path) for name in self._mates(file)}
            found += self._ordered(importing) + self._ordered(self._of_file(path))
        users, seen = {path}, {path}
        # A table that only the import of another table reads is used by whatever imports that one, and so on upwards.
        while users and not found:
            users = {user for each in users for user in _importers(each, *PACKAGES)} - seen
            seen |= users
            found = self._ordered({test for user in users for test in self._of_file(user)})
        chosen: list[str] = []
        total = 0.0
        for name in dict.fromkeys(found):
            total += max(self._seconds[name], LEAST_S)
            if chosen and total > TESTS_S:
                break
            chosen.append(name)
        book = self._book(path, whole=at_import)
        return list(dict.fromkeys([*book, *chosen] if once else [*chosen, *book]))

    def _book(self, path: str, *, whole: bool) -> list[str]:
        """The book's tests that run anything of a file; all of them for what runs at import, since its users may be elsewhere."""
        # What one test works out is often kept for those behind it, which coverage then does not credit: a launch count that 800
        # answers rest on counted as run by none of them.
        there = [name for name in self._seconds if name.startswith(BROADEST)]
        return self._ordered(set(there) if whole else self._of_file(path).intersection(there))

    def _ordered(self, names: Iterable[str]) -> list[str]:
        known = (name for name in names if name in self._seconds)
        return sorted(known, key=lambda name: (not name.startswith(BROADEST), self._seconds[name], name))

    @lru_cache(maxsize=512)  # noqa: B019 - there is one of these
    def _lines(self, path: str) -> frozenset[int]:
        return frozenset(self._data.lines(path) or ())

    @lru_cache(maxsize=16)  # noqa: B019 - there is one of these
    def _contexts(self, path: str) -> dict[int, list[str]]:
        return self._data.contexts_by_lineno(path)

    def _of_lines(self, path: str, lines: Iterable[int]) -> set[str]:
        """Tests that run one of these lines. If a fixture runs it, these are all tests of its file, which may share it."""
        contexts = self._contexts(path)
        names: set[str] = set()
        for name in {name for line in lines for name in contexts.get(line, ()) if name}:
            test, _, phase = name.rpartition("|")
            names |= self._mates(test.partition("::")[0]) if phase == "setup" else {test}
        return names

    @lru_cache(maxsize=512)  # noqa: B019 - there is one of these
    def _mates(self, file: str) -> set[str]:
        return {name for name in self._seconds if name.partition("::")[0] == file}

    def _of_file(self, path: str) -> set[str]:
        return self._of_lines(path, self._contexts(path)) if path in self._files else set()


@lru_cache(maxsize=64)
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def _statement_lines(path: str, line: int) -> range:
    """Lines of the smallest statement around a line; of a compound statement only its head."""
    best = range(line, line + 1)
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno
            if node.lineno <= line <= last:
                best = range(node.lineno, last + 1)
    return best


def is_outside_functions(tree: ast.Module, line: int) -> bool:
    """Whether a line is in no function's body, so that it runs when its module is imported. Defaults and decorators do."""
    return not any(
        node.body[0].lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _is_cached(path: str, line: int) -> bool:
    """Whether the line is in a function whose results are cached, so that only the first test that asks runs it."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            names = {part.id for each in node.decorator_list for part in ast.walk(each) if isinstance(part, ast.Name)}
            if names & _CACHES:
                return True
    return False


@lru_cache(maxsize=64)
def _importers(path: str, *folders: str) -> tuple[str, ...]:
    """Files of these folders that import a module or something from it."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return tuple(other for other in sources_of(folders) if module in _imported(other))


def importing_tests(path: str) -> list[str]:
    """Test files that import a module, or the package that it is in, which may load it by name and pass on what it defines."""
    package = str(Path(path).parent / "__init__.py")
    return list(dict.fromkeys([*_importers(path, "tests"), *_importers(package, "tests")]))


@lru_cache(maxsize=1024)
def _imported(path: str) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
    return frozenset(names)
