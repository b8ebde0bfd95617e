"""`meshwright evaluate`: one JSON line in, one evaluation out, in order, while more are still coming."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import reader_may_leave, write_document
from cost_models.errors import InvalidInputError, Problem

LARGEST_READ_BYTES = 1 << 20


def evaluate(
    rows: Annotated[str, typer.Argument(help="JSON lines, one row each; - reads standard input.")],
    *,
    calibration: Annotated[
        str | None, typer.Option(help="Calibration for every row: a file or a shipped name.")
    ] = None,
) -> None:
    """Price given strategies: one evaluation per input line, in order."""
    from planner.rows import evaluate_rows

    with ExitStack() as stack, reader_may_leave():
        source = sys.stdin.buffer if rows == "-" else stack.enter_context(_opened(rows))
        assert isinstance(source, BufferedReader)
        _refuse_one_document(source, rows)
        for lines in arriving_lines(source):
            for evaluation in evaluate_rows(lines, calibration=calibration, allow_files=True):
                write_document(evaluation)
            sys.stdout.flush()


def arriving_lines(source: BufferedReader) -> Iterator[list[str]]:
    """The lines that are there, at once, however few: whoever writes rows one by one waits for each answer.

    Bytes that are not UTF-8 become marks, which make their own line invalid and no other; a byte order mark is dropped.
    """
    held: list[bytes] = []
    encoding = "utf-8-sig"
    while data := source.read1(LARGEST_READ_BYTES):
        *complete, rest = data.split(b"\n")
        if complete:
            text = b"\n".join([b"".join([*held, complete[0]]), *complete[1:]]).decode(encoding, errors="replace")
            encoding = "utf-8"
            held = []
            yield text.split("\n")
        held.append(rest)
    if any(held):
        yield [b"".join(held).decode(encoding, errors="replace")]


def _refuse_one_document(source: BufferedReader, name: str) -> None:
    """A document printed over several lines is no row a line: said once instead of for each of its lines."""
    first = source.peek().split(b"\n", 1)[0].strip()
    if first in {b"{", b"["}:
        message = f"{'standard input' if name == '-' else name} is one JSON document over several lines"
        raise InvalidInputError(
            [Problem("", message, "Write one row per line; a plan request goes to `meshwright plan`.", "invalid-json")]
        )


def _opened(path: str) -> BufferedReader:
    try:
        return Path(path).open("rb")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise InvalidInputError([Problem("", message, "Give the path of a JSON-lines file, or -.")]) from error
