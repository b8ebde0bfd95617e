"""`meshwright evaluate`: one JSON line in, one evaluation out, in order, while more are still coming."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cost_models.errors import InvalidInputError, Problem


def evaluate(
    rows: Annotated[str, typer.Argument(help="JSON lines, one row each; - reads standard input.")],
    *,
    calibration: Annotated[
        str | None, typer.Option(help="Calibration for every row: a file or a shipped name.")
    ] = None,
) -> None:
    """Price given strategies: one evaluation per input line, in order."""
    from planner.rows import evaluate_rows

    with _opened(rows) as lines:
        for evaluation in evaluate_rows(lines, calibration=calibration, allow_files=True):
            sys.stdout.write(json.dumps(evaluation, allow_nan=False, separators=(",", ":")) + "\n")


@contextmanager
def _opened(source: str) -> Iterator[io.TextIOBase]:
    """Lines of the file; bytes that are not UTF-8 become marks that make their own line invalid, and no other."""
    with ExitStack() as stack:
        if source == "-":
            lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", errors="replace")
            stack.callback(lines.detach)
        else:
            try:
                lines = stack.enter_context(Path(source).open(encoding="utf-8-sig", errors="replace"))
            except OSError as error:
                message = f"{source} cannot be read: {error.strerror}"
                raise InvalidInputError([Problem("", message, "Give the path of a JSON-lines file, or -.")]) from error
        yield lines
