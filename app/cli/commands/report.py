"""`meshwright report`: a plan response or a tuning as a page that needs no network, to look at and to pass on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from app.cli.inputs import MAX_RESPONSE_BYTES, read_document
from app.cli.output import require_name, write_file
from cost_models.errors import InvalidInputError, Problem


def report(
    response: Annotated[
        str,
        typer.Argument(help="Plan response, ranked plan, evaluation or tuning (JSON file, or - for standard input)."),
    ],
    *,
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page that is written.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    scripts: Annotated[
        bool,
        typer.Option(
            "--scripts/--no-scripts",
            help="Whether the page may sort its tables and answer to the pointer. It says the same without.",
        ),
    ] = True,
) -> None:
    """Write a report of plans, or of a tuning, as one HTML file: verdict, ranking, memory, time; predicted against measured."""
    document = read_document(response, most_bytes=MAX_RESPONSE_BYTES)
    # Looked at before anything is computed: a refusal should not take a second.
    _require_free(html, response, force=force)
    from app.report.build import build_report
    from app.report.one_evaluation import evaluation_file
    from app.report.pages import report_file
    from app.report.tuning.document import is_tuning
    from app.report.tuning.page import tuning_file

    if is_tuning(document):
        text = tuning_file(document, scripts=scripts)
    elif "plans" in document and "request" in document:
        text = report_file(build_report(document, allow_files=True), scripts=scripts)
    else:
        text = evaluation_file(document, scripts=scripts)
    write_file(html, text)
    typer.echo(str(html))


def _require_free(path: Path, response: str, *, force: bool) -> None:
    """Refuses a file that is there, the response itself, and a place that no file can have."""
    # Elsewhere `-` is a stream; a file of that name would be found by nobody.
    if path.is_dir() or str(path) == "-":
        told = "a folder" if path.is_dir() else "no file's name"
        _refuse(f"--html {path} is {told}", "Give the path of the page, such as plan.html.", "not-a-file")
    require_name(path, option="--html", example="plan.html")
    if not path.parent.is_dir():
        _refuse(f"{path.parent} is not a folder", "Make it first, or give another --html.", "not-a-folder")
    # A link counts as a file even where what it leads to is gone.
    if not (path.exists() or path.is_symlink()):
        return
    # Before --force is looked at: the answer may have taken hours, and a page cannot be turned back into it.
    if response != "-" and path.exists() and path.samefile(response):
        _refuse(f"--html {path} is the response itself", "Give another --html, such as plan.html.", "file-exists")
    if not force:
        _refuse(f"{path} is there already", "Give another --html, or --force to replace it.", "file-exists")


def _refuse(message: str, hint: str, code: str) -> NoReturn:
    raise InvalidInputError([Problem("", message, hint, code)])
