"""Which tests could notice a change: lines that run when a module is imported belong to no single test."""

from __future__ import annotations

import ast

from scripts.covered import importing_tests, is_outside_functions

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
