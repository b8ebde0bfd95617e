"""`meshwright evaluate`: one evaluation per JSON line, in order, each as soon as its line has arrived."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Annotated

import typer

from app.cli.documents import read_corrections
from app.cli.output import reader_may_leave, write_document
from cost_models.errors import InvalidInputError, Problem

# What is read at once is priced as one batch, and batches are faster than rows: 1 MiB holds thousands of them.
LARGEST_READ_BYTES = 1 << 20


def evaluate(
    rows: Annotated[str, typer.Argument(help="File of JSON lines, one row each; - reads standard input.")],
    *,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Calibration for every row: a file, or the name of a shipped one.",
            show_default="what each row says",
        ),
    ] = None,
    corrections: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Corrections for every row, as `correct` writes them.",
            show_default="what each row says",
        ),
    ] = None,
) -> None:
    """Price given strategies: one evaluation per input line, in order."""
    from cost_models.inputs.corrections import resolve_corrections
    from planner.rows import evaluate_arriving

    learnt = None if corrections is None else resolve_corrections(read_corrections(corrections))

    with ExitStack() as stack, reader_may_leave():
        source = sys.stdin.buffer if rows == "-" else stack.enter_context(_opened(rows))
        assert isinstance(source, BufferedReader)
        _let_rows_pile_up(source)
        _refuse_one_document(source, rows)
        for evaluations in evaluate_arriving(
            arriving_lines(source), calibration=calibration, allow_files=True, corrections=learnt
        ):
            for evaluation in evaluations:
                write_document(evaluation)
            sys.stdout.flush()


def arriving_lines(source: BufferedReader) -> Iterator[list[str]]:
    """The lines that have arrived, however few, because a program that writes rows one by one waits for each answer.

    Bytes that are not UTF-8 become replacement characters, which make their own line invalid and no other. A byte order mark is
    dropped.
    """
    held: list[bytes] = []
    encoding = "utf-8-sig"
    # `read1` returns what is there; `read` or iterating over lines would wait until a whole buffer is full.
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


def _let_rows_pile_up(source: BufferedReader) -> None:
    """Lets a pipe hold as much as is read at once, where the system can: it holds 64 KiB otherwise, a hundred rows or two, and
    its writer waits while these are priced.
    """
    try:
        import fcntl

        fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, LARGEST_READ_BYTES)
    except (
        ImportError,
        AttributeError,
        OSError,
    ):  # not Linux, not a pipe, or more than the administrator lets a user have
        return


def _refuse_one_document(source: BufferedReader, name: str) -> None:
    """Refuses a document that is printed over several lines once, instead of calling each of its lines invalid."""
    first = source.peek().split(b"\n", 1)[0].strip()
    if first in {b"{", b"["}:
        message = (
            f"{'standard input' if name == '-' else name} holds one JSON document that is spread over several lines"
        )
        raise InvalidInputError(
            [Problem("", message, "Write one row per line. For a plan request use `meshwright plan`.", "invalid-json")]
        )


def _opened(path: str) -> BufferedReader:
    try:
        return Path(path).open("rb")
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise InvalidInputError([Problem("", message, "Give the path of a JSON-lines file, or -.")]) from error
