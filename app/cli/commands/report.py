"""`meshwright report`: a plan response or a tuning as a page that needs no network, to look at and to pass on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.inputs import MAX_RESPONSE_BYTES, read_document
from app.cli.output import require_free, write_file


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
    require_free(html, response, force=force)
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
