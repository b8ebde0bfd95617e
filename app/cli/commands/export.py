"""`meshwright export`: the launch files of one ranked plan, written into a folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.inputs import MAX_RESPONSE_BYTES, read_document
from app.cli.output import require_name
from cost_models.errors import InvalidInputError, Problem

if TYPE_CHECKING:
    from planner.export.target import LaunchFile


def export(
    response: Annotated[str, typer.Argument(help="Plan response (JSON file, or - for standard input).")],
    *,
    framework: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Target: megatron, megatron-bridge, nemo, deepspeed, torchtitan, nanotron, accelerate, transformers or pytorch.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder that the files are written to; it is made where it is missing.")],
    plan: Annotated[int, typer.Option(metavar="RANK", help="Rank of the plan.", min=1)] = 1,
    changed: Annotated[
        bool, typer.Option("--changed", help="Take the rank from the plans that change the mathematics.")
    ] = False,
    framework_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="Release of the target.",
            show_default="the request's, or a front end's newest known one",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write the launch files of a plan: configuration, launch script, SLURM and Kubernetes files."""
    from planner.export.export import export as launch_files

    require_name(out, option="--out", example="launch")
    document = read_document(response, most_bytes=MAX_RESPONSE_BYTES)
    _require_response(document)
    files = launch_files(
        document, framework, plan=plan, changed=changed, framework_version=framework_version, allow_files=True
    )
    for path in written(files, out, force=force):
        sys.stdout.write(f"{path}\n")


def written(files: Sequence[LaunchFile], folder: Path, *, force: bool) -> list[Path]:
    """The paths of the files, after they were written; none is written where one of them may not be replaced.

    Raises:
        InvalidInputError: a file is there and `force` is false, or the folder cannot be made.
    """
    paths = [folder / file.path for file in files]
    # A link counts as a file even where what it leads to is gone.
    there = [path for path in paths if path.exists() or path.is_symlink()]
    if there and not force:
        message = f"{there[0]} is there already" + (f", and {len(there) - 1} more files" if len(there) > 1 else "")
        raise InvalidInputError(
            [Problem("", message, "Give another --out, or --force to replace them.", "file-exists")]
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidInputError(
            [Problem("", f"{folder} is not a folder", "Give another --out.", "not-a-folder")]
        ) from error
    # All files were checked before the first is written, so that a refusal leaves the folder as it was.
    for path, file in zip(paths, files, strict=True):
        # A link would lead outside the folder.
        if path.is_symlink():
            path.unlink()
        path.write_text(file.content, encoding="utf-8", newline="\n")
        if file.executable:
            path.chmod(0o755)
    return paths


def _require_response(document: dict[str, object]) -> None:
    if not isinstance(document.get("plans"), list) or not isinstance(document.get("request"), dict):
        message = "the document is no plan response: it has no plans or no request"
        raise InvalidInputError([Problem("", message, "Give what `meshwright plan --json` printed.", "not-a-response")])
