"""Which tests could notice a change: lines that run when a module is imported belong to no single test."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from coverage import CoverageData

from scripts.covered import ROOT, Covered, digest, importing_tests, is_outside_functions

TEXT = """\
TABLE = (
    1,
)
@route(status=201)
def plain(
    value=3,
):
    return (
        value
    )
class Row:
    size = 4
    async def read(self):
        return 5
AFTER = [lambda: 6]
"""


def test_tables_defaults_and_decorators_run_at_import_and_bodies_do_not() -> None:
    outside = [line for line in range(1, 16) if is_outside_functions(ast.parse(TEXT), line)]
    assert outside == [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 15]


def test_tests_that_import_a_package_stand_for_what_it_passes_on() -> None:
    """The facts of every framework reach tests through their package; a product's prices do not."""
    bounds = "tests/unit/cost_models/frameworks/test_release_bounds.py"
    assert bounds in importing_tests("cost_models/frameworks/megatron.py")
    assert bounds not in importing_tests("cost_models/hardware/gemm.py")


STATES = "planner/rules/states.py"
BOOK = "tests/approved/test_approved_answers.py::test_answers_are_those_of_the_book"
ROWS, TABLES, HERE, THERE = (
    f"{BOOK}[rows-]",
    f"{BOOK}[tables-]",
    "tests/unit/test_a.py::test_a",
    "tests/unit/test_b.py::test_b",
)


def line_after(start: str) -> int:
    lines = (ROOT / STATES).read_text().splitlines()
    return 2 + next(number for number, line in enumerate(lines) if line.startswith(start))


def kept(folder: Path) -> Covered:
    """What a run would have kept in which one group of the book and two tests ran functions of these rules."""
    data = CoverageData(str(folder / "coverage"))
    first, second = line_after("def _zero3_tensor"), line_after("def _shard_size")
    for name, path, line in (
        (ROWS, STATES, first),
        (HERE, STATES, first),
        (THERE, STATES, second),
        (TABLES, "planner/plan.py", 1),
    ):
        data.set_context(f"{name}|run")
        data.add_lines({path: [line]})
    data.write()
    seconds = {ROWS: 9.0, TABLES: 1.0, HERE: 0.1, THERE: 0.2}
    (folder / "seconds.json").write_text(json.dumps(seconds))
    (folder / "digests.json").write_text(json.dumps({path: digest(path) for path in (STATES, "planner/plan.py")}))
    return Covered(folder, there=frozenset(seconds))


def test_the_book_is_asked_too_where_what_one_test_worked_out_is_kept_for_the_next(tmp_path: Path) -> None:
    """A table's users may be in any file, so all of the book is; a line in a function may have run once for many answers."""
    covered = kept(tmp_path)
    assert covered.tests(STATES, line_after("def _shard_size")) == [THERE, ROWS]
    assert covered.tests(STATES, line_after("STATE_RULES"))[:2] == [TABLES, ROWS]
