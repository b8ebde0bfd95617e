"""Small mutations of the sources, one at a time, each against the tests that run the mutated line: which ones go unnoticed?

    python -m scripts.mutants cover                       # once: runs the tests, and notes which run which line
    python -m scripts.mutants cover tests/unit/test_x.py  # adds tests that were written since
    python -m scripts.mutants run --count 60              # draws mutations; exit code 1 where too many survive
    python -m scripts.mutants run --packages app profiler # draws them from these packages only
    python -m scripts.mutants again scripts/survivors.json  # mutations that were written down

The checkout is left alone, since tests run in a copy of it. A mutation is killed if a test that passes without it fails, or does not
end. Mutations that were found to change nothing that a test could see are listed with the reason in `equivalent_mutations.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import Queue
from random import Random
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from scripts.covered import KEPT, ROOT, TESTS_S, Covered, cover, sources_of
from scripts.mutations import Mutation, mutations_of, written_down

SHARES = {"cost_models": 24, "planner": 18, "profiler": 6, "app": 12}
"""How many of 60 mutations are drawn from each package, roughly by what an error there costs a user."""
LEFT_OUT = ("/migrations/", "/api/pages/", "/presets/", "constants.py")
"""Data and generated files. Whether a constant has the right value is a question for the accuracy scores, not for a test."""
ONE_TEST_S, ALL_TESTS_S = 100.0, 4 * TESTS_S
"""Seconds after which a test, and all tests of a mutation together, count as not ending."""
EQUIVALENT = ROOT / "scripts" / "equivalent_mutations.json"
"""Mutations that were looked at and change nothing that a test could see, each with the reason. They are not drawn."""
_moments = count(1_000_000_000)


@dataclass(eq=False)
class Copy:
    """A checkout in which one file at a time is changed."""

    folder: Path
    trusted: set[str] = field(default_factory=set)
    """Tests that were seen to pass here without a mutation."""

    def killer(self, mutation: Mutation, tests: Sequence[str]) -> str | None:
        """A test that notices the mutation; None if none does."""
        file, tests = self.folder / mutation.path, list(tests)
        text = file.read_text()
        # A failure counts only if the same test passes without the mutation. One that needs more than a copy offers, such as the
        # commit, fails either way, is set aside, and the others are tried again.
        while tests:
            _write(file, mutation.applied(text))
            try:
                failed = self._first_failure(tests)
            finally:
                _write(file, text)
            if failed is None or self._passes(failed):
                return failed
            tests = [test for test in tests if test != failed and not test.startswith(f"{failed}::")]
        return None

    def _passes(self, test: str) -> bool:
        """Whether the test passes, or its file can be read, without a mutation: one that needs more than a copy does not."""
        only_read = () if "::" in test else ("--collect-only",)
        if test not in self.trusted and self._first_failure([test], *only_read) is None:
            self.trusted.add(test)
        return test in self.trusted

    def _first_failure(self, tests: Sequence[str], *options: str) -> str | None:
        """The first of these tests that fails or does not end; its file if that cannot even be imported."""
        names, report = self.folder / ".tests", self.folder / ".report.xml"
        names.write_text("\n".join(tests))
        report.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
            "--timeout", str(ONE_TEST_S), f"--junit-xml={report}", "-o", "junit_family=xunit1", *options, f"@{names}",
        ]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603 - our own arguments
                command, cwd=self.folder, check=False, capture_output=True, timeout=ALL_TESTS_S,
                env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return tests[0].partition("::")[0]
        # Pytest then runs nothing, which would count as a failure of the mutation.
        if b"not found: " in done.stderr + done.stdout and not report.exists():
            raise SystemExit(f"pytest does not find all of these tests:\n{done.stderr.decode()}")
        return None if done.returncode == 0 else _failed(report) or tests[0].partition("::")[0]


def _failed(report: Path) -> str | None:
    """Name of the first test that failed, of its file where that could not be imported."""
    if not report.exists():
        return None
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own run
        if {part.tag for part in case} & {"failure", "error"} and case.get("file"):
            file, classname = case.get("file", ""), case.get("classname", "")
            if not classname:  # the file itself, which could not be imported
                return file
            classes = classname.split(".")[len(Path(file).parts) :]
            return "::".join([file, *classes, case.get("name", "")])
    return None


def _write(file: Path, text: str) -> None:
    """Writes a source with a time stamp of its own.

    Python takes byte code for current if time stamp and length of the source agree, and a mutation often changes neither.
    """
    file.write_text(text)
    moment = next(_moments)
    os.utime(file, (moment, moment))


@contextmanager
def copies(number: int) -> Iterator[list[Copy]]:
    """Copies of what git tracks or would track."""
    git = shutil.which("git")
    assert git is not None, "the files to copy are those that git knows"
    listed = subprocess.run(  # noqa: S603 - our own arguments
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    names = [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]
    with TemporaryDirectory() as folder:
        found = [Copy(Path(folder) / str(place)) for place in range(number)]
        for each in found:
            for name in names:
                target = each.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        yield found


def drawn(number: int, *, seed: int, covered: Covered, packages: Sequence[str] = tuple(SHARES)) -> list[Mutation]:
    """A sample of mutations on lines that some test runs, in which each of these packages has its share."""
    draw = Random(seed)  # noqa: S311 - equal seeds draw equal mutations
    known = {(entry["path"], entry["becomes"]) for entry in json.loads(EQUIVALENT.read_text())}
    chosen: list[Mutation] = []
    for package, number_here in shared_out(number, packages).items():
        paths = [path for path in sources_of([package]) if not any(part in f"/{path}" for part in LEFT_OUT)]
        texts = {path: (ROOT / path).read_text() for path in paths}
        every = [
            each
            for path, text in texts.items()
            for each in mutations_of(path, text)
            if (path, each.becomes(text)) not in known
        ]
        # A line that nothing runs is the coverage report's to find; here it would only dilute the sample.
        run = [each for each in every if covered.runs(each.path, each.line)]
        print(f"{package}: {len(every)} mutations, {len(every) - len(run)} of them on lines that no test runs")
        # In proportion to the shares and not to the lines, so that a large package does not take the whole sample.
        chosen += draw.sample(run, min(len(run), number_here))
    return chosen


def shared_out(number: int, packages: Sequence[str]) -> dict[str, int]:
    """How many of so many mutations each of these packages gets, in the order and the proportions of SHARES."""
    shares = {package: share for package, share in SHARES.items() if package in packages}
    return {package: round(number * share / sum(shares.values())) for package, share in shares.items()}


def tried(mutations: Sequence[Mutation], covered: Covered | None, *, jobs: int) -> list[Mutation]:
    """The mutations that survive. Prints the result of each as it becomes known."""
    survived: list[Mutation] = []
    every = [
        (each, [*each.killed_by] or (covered.tests(each.path, each.line) if covered else [])) for each in mutations
    ]
    # One copy per thread, since a mutation changes a file that every test of the copy would read.
    with copies(jobs) as places, ThreadPoolExecutor(jobs) as pool:
        free: Queue[Copy] = Queue()
        for place in places:
            free.put(place)

        def try_one(mutation: Mutation, tests: list[str]) -> None:
            place = free.get()
            try:
                killer = place.killer(mutation, tests)
            finally:
                free.put(place)
            if killer is None:
                survived.append(mutation)
            told = f"SURVIVED {mutation} ({len(tests)} tests)" if killer is None else f"killed   {mutation} by {killer}"
            print(told, flush=True)

        list(pool.map(lambda pair: try_one(*pair), every))
    return [each for each in mutations if each in survived]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; the exit code is 1 if fewer mutations are killed than asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("act", choices=("cover", "run", "again"))
    parser.add_argument("files", nargs="*", help="cover: tests to add; again: the file of mutations")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", nargs="+", choices=SHARES, default=[*SHARES], help="run: packages to draw from")
    parser.add_argument("--least", type=float, default=0.9, help="share that must be killed")
    parser.add_argument("--jobs", type=int, default=1, help="mutations tried at a time")
    asked = parser.parse_args(arguments)
    if asked.act == "cover":
        return cover(asked.files)
    if asked.act == "again":
        mutations = [each for file in asked.files for each in written_down(Path(file), ROOT)]
        covered = None if all(each.killed_by for each in mutations) else Covered()
    else:
        covered = Covered()
        mutations = drawn(asked.count, seed=asked.seed, covered=covered, packages=asked.packages)
    survived = tried(mutations, covered, jobs=asked.jobs)
    killed = len(mutations) - len(survived)
    print(f"{killed} of {len(mutations)} killed ({killed / max(len(mutations), 1):.0%})")
    KEPT.mkdir(exist_ok=True)
    kept = [{"path": m.path, "line": m.line, "column": m.column, "old": m.old, "new": m.new} for m in survived]
    (KEPT / "survived.json").write_text(json.dumps(kept, indent=2) + "\n")
    return int(killed < asked.least * len(mutations))


if __name__ == "__main__":
    sys.exit(main())
