"""`meshwright correct`: from measured runs to a document of corrections, which `plan` and `evaluate` apply with --corrections."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.inputs import read_documents
from app.cli.output import require_name, require_other_file, write_file
from cost_models.errors import InvalidInputError, Problem

MOST_RECORD_BYTES = 1 << 28
"""Largest file of trials: tens of thousands with their traces."""


def correct(
    context: typer.Context,
    records: Annotated[
        list[str],
        typer.Argument(
            metavar="RUNS...",
            help="Files of JSON lines: trial records, observations, or the JSON of tune; - reads standard input.",
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the corrections.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Learn corrections from measured runs: a factor for each term, kept where it predicts runs that were left out."""
    from cost_models.corrections import fit_corrections
    from cost_models.inputs.corrections import corrections_document
    from planner.learning.measured import measured_runs, told
    from planner.request.checked_request import PRODUCT_VERSION

    require_name(out, option="--out", example="corrections.json")
    require_other_file(out, option="--out", read=records)
    if out.exists() and not force:
        hint = "Choose another name, or overwrite it with --force."
        raise InvalidInputError([Problem("", f"{out} exists already", hint, "file-exists")])
    documents = [
        run for name in records for each in read_documents(name, most_bytes=MOST_RECORD_BYTES) for run in runs_of(each)
    ]
    found = measured_runs(documents, allow_files=True)
    for line in told(found.left):
        typer.echo(f"left out: {line}", err=True)
    if not found.runs:
        given = len(documents)
        message = "the only run cannot be used" if given == 1 else f"none of the {given} runs can be used"
        hint = "Give trial records that ended with status ok, or observations; their rows must be those of `evaluate`."
        raise InvalidInputError([Problem("", message, hint, "no-measured-runs")])
    corrections = fit_corrections(found.runs)
    document = corrections_document(corrections, product_version=PRODUCT_VERSION)
    try:
        write_file(out, json.dumps(document, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        message = f"{out} cannot be written: {error.strerror}"
        raise InvalidInputError([Problem("", message, "Give another path with --out.")]) from error
    if not context.obj["quiet"]:
        from app.cli.rendering.corrections import print_corrections

        print_corrections(corrections, runs=len(found.runs), out=str(out))


def runs_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a document: itself, or the trial records of a tuning."""
    trials = document.get("trials")
    if not isinstance(trials, list):
        return [document]
    return [trial["record"] for trial in trials if isinstance(trial, dict) and isinstance(trial.get("record"), dict)]
