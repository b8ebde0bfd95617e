"""`meshwright observe`: a training log, or numbers, read into an observation of a row."""

from __future__ import annotations

import codecs
import hashlib
import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from app.cli.commands.profile import Token
from app.cli.documents import read_row
from app.cli.output import reader_may_leave, write_document
from cost_models.errors import InvalidInputError, Problem

if TYPE_CHECKING:
    from app.observations.observe import Told


def observe(
    context: typer.Context,
    log: Annotated[
        str | None,
        typer.Argument(
            metavar="LOGFILE", help="What the run printed, or its trainer_state.json; - reads standard input."
        ),
    ] = None,
    *,
    row: Annotated[
        str,
        typer.Option(
            metavar="ROW.json",
            help="The row of the run, such as plan.json of an exported launch; - reads standard input.",
        ),
    ],
    log_format: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="Format of the log.", show_default="found out")
    ] = None,
    step_time: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Median seconds of a step, in place of a log.", min=0.0)
    ] = None,
    peak_memory_gib: Annotated[
        float | None, typer.Option(metavar="GIB", help="Peak allocated memory of a GPU, beside --step-time.", min=0.0)
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Store the observation in this service, which predicts it.")
    ] = None,
    token: Token = None,
) -> None:
    """Read a training log into an observation: what a step took and needed, beside its prediction."""
    from app.observations.observe import observation, told_by_numbers

    if (log is None) == (step_time is None):
        hint = "For example: meshwright observe train.log --row row.json, or --row row.json --step-time 1.25."
        raise InvalidInputError([Problem("", "give either a log or --step-time", hint)])
    if log == "-" and row == "-":
        raise InvalidInputError([Problem("", "the log and the row cannot both come from standard input", "Save one.")])
    document = read_row(row)
    if log is not None:
        told = _told_by_file(log, document, log_format=log_format)
    else:
        told = told_by_numbers({"step_time_s": step_time, "peak_memory_gib": peak_memory_gib})
    if server is None:
        answer = observation(document, told, allow_files=True)
    else:
        from app.cli.client import Client

        with Client(server, token=token) as client:
            answer = client.observe(
                {"row": document, "measured": told.measured, "source": told.source, "flags": list(told.flags)}
            )
    with reader_may_leave():
        write_document(answer)
    if not context.obj["quiet"]:
        _tell(answer)
        if server is not None:
            typer.echo(f"Kept by {server} as {answer['id']}.", err=True)


def _told_by_file(path: str, row: Mapping[str, Any], *, log_format: str | None) -> Told:
    from app.observations.observe import told_by_log
    from profiler.logs.read import read_log

    digest = hashlib.sha256()

    def hashed(lines: IO[bytes]) -> Iterator[bytes]:
        # A file without line ends, such as a binary one, comes in pieces too.
        while piece := lines.readline(1 << 16):
            digest.update(piece)
            yield piece

    with _opened(path) as file:
        encoded, pieces = file.peek(2)[:2], hashed(file)
        # PowerShell writes what is redirected with `>` as UTF-16.
        is_wide = encoded in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        reading = read_log(
            codecs.iterdecode(pieces, "utf-16", "replace") if is_wide else pieces, row=row, format=log_format
        )
        for _ in pieces:  # what a document's reader did not need
            pass
    return told_by_log(reading, log_sha256=digest.hexdigest())


@contextmanager
def _opened(path: str) -> Iterator[io.BufferedReader]:
    if path == "-":
        assert isinstance(sys.stdin.buffer, io.BufferedReader)
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise InvalidInputError([Problem("", message, "Give the file that the run printed, or -.")]) from error
    with file:
        yield file


def _tell(answer: Mapping[str, Any]) -> None:
    """What is in it, for people, on standard error."""
    measured, predicted = answer["measured"], answer["predicted"]
    shown = f"{measured['step_time_s']:.4g} s a step"
    if measured["num_steps"]:
        shown += f" ({measured['num_steps']:,} steps)"
    if measured["peak_memory_gib"] is not None:
        shown += f", {measured['peak_memory_gib']:.4g} GiB {measured['memory_counter'] or 'allocated'}"
    if predicted is not None:
        low, high = predicted["step_time_range_s"]
        shown += f"; predicted {predicted['step_time_s']:.4g} s ({low:.3g} to {high:.3g})"
        if measured["peak_memory_gib"] is not None:
            shown += f" and {predicted['peak_memory_gib']:.4g} GiB"
    typer.echo(shown, err=True)
    for remark in answer["remarks"]:
        typer.echo(f"note: {remark}", err=True)
    if not answer["used"]:
        typer.echo("Predictions are not corrected by this observation.", err=True)
