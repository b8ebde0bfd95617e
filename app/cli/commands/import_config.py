"""`meshwright import`: an evaluate row from configuration files that somebody has. Nothing in them is executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.inputs import assignments, read_cluster, read_model
from app.cli.output import reader_may_leave, write_document
from cost_models.errors import InvalidInputError, Problem

if TYPE_CHECKING:
    from planner.export.import_config import Imported
    from planner.export.imported_row import Overrides
    from planner.export.settings import InputFile

EXIT_MISSING = 2
_OPTIONS = {"/model/vocab_size": "--vocab-size", "/model": "--model", "/cluster": "--cluster"}
Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE...",
        help="Configuration files and launch scripts of one run (.json, .yaml, .toml, .sh, torchtitan's .py).",
    ),
]
Arguments = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Arguments of Megatron-LM as one text; they override the files'.")
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Preset name, config.json (or its folder) or model specification, where the files have no model.",
    ),
]
VocabSize = Annotated[
    int | None, typer.Option(help="Vocabulary of the model, which scripts leave to the tokenizer.", min=1)
]
NumNodes = Annotated[
    int | None,
    typer.Option(metavar="COUNT", help="Nodes of the cluster.", show_default="as many as the files start"),
]
Framework = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Whose files these are, where it cannot be told: megatron, deepspeed, accelerate, …",
        show_default="told from the files",
    ),
]
Training = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A field of the training that the files lack: --training seq_length=4096."),
]
Strategy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="A field of the strategy that the files lack: --strategy micro_batch_size=1."
    ),
]


def import_config(
    context: typer.Context,
    files: Files = None,
    *,
    megatron_args: Arguments = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Preset name or cluster specification.")
    ] = None,
    num_nodes: NumNodes = None,
    model: Model = None,
    vocab_size: VocabSize = None,
    framework: Framework = None,
    training: Training = None,
    strategy: Strategy = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print row, format, unknown and missing as one JSON object.")
    ] = False,
) -> None:
    """Read an existing configuration into a row for evaluate. Nothing in it is executed."""
    from planner.export.import_config import import_config as read

    given = overrides(
        cluster=cluster, num_nodes=num_nodes, model=model, vocab_size=vocab_size, training=training, strategy=strategy
    )
    found = read(
        read_files(files or ()), megatron_args=megatron_args, given=given, framework=framework, allow_files=True
    )
    with reader_may_leave():
        write_document(found.document() if as_json else found.row)
    tell(found, quiet=context.obj["quiet"])
    if found.missing:
        raise typer.Exit(EXIT_MISSING)


def overrides(
    *,
    cluster: str | None,
    num_nodes: int | None,
    model: str | None,
    vocab_size: int | None,
    training: Sequence[str] | None,
    strategy: Sequence[str] | None,
) -> Overrides:
    """What options give beside the files."""
    from planner.export.imported_row import Overrides

    nodes: Mapping[str, Any] = {} if num_nodes is None else {"num_nodes": num_nodes}
    if nodes and not cluster:
        raise InvalidInputError(
            [Problem("/cluster", "--num-nodes needs a cluster", "Give it with --cluster.", "missing-field")]
        )
    vocabulary: Mapping[str, Any] = {} if vocab_size is None else {"vocab_size": vocab_size}
    return Overrides(
        model={**read_model(model), **vocabulary} if model else vocabulary or None,
        cluster={**read_cluster(cluster), **nodes} if cluster else None,
        training=assignments(training or (), option="--training"),
        strategy=assignments(strategy or (), option="--strategy"),
    )


def read_files(paths: Sequence[str]) -> list[InputFile]:
    """The files, none of which is read further than it may be large.

    Raises:
        InvalidInputError: a file cannot be opened or is not UTF-8.
    """
    from planner.export.formats.documents import MOST_BYTES, unreadable
    from planner.export.settings import InputFile

    found = []
    for path in paths:
        try:
            # One byte more than allowed tells a file that is too large, however large it is.
            with Path(path).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}"
            raise InvalidInputError([Problem("", message, "Give the path of a configuration file.")]) from error
        if len(content) > MOST_BYTES:
            raise unreadable(
                InputFile(path, ""), None, f"is larger than {MOST_BYTES >> 10} KiB", "Give the configuration alone."
            )
        try:
            found.append(InputFile(path, content.decode("utf-8-sig")))
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise unreadable(InputFile(path, ""), line, "is not UTF-8 text") from error
    return found


def tell(found: Imported, *, quiet: bool) -> None:
    """Says on stderr what was not understood and what is missing."""
    if not quiet:
        for each in found.unknown:
            typer.echo(f"not understood: {each['file']}, line {each['line']}: {each['text']}", err=True)
        for note in found.notes:
            typer.echo(f"note: {note}", err=True)
    undecided = found.settings.undecided()
    for pointer in found.missing:
        typer.echo(f"missing: {pointer[1:].replace('/', '.')}: {_remedy(pointer, undecided)}", err=True)


def _remedy(pointer: str, undecided: Mapping[str, Any]) -> str:
    _, part, *names = pointer.split("/")
    name = ".".join(names)
    option = _OPTIONS.get(pointer) or _OPTIONS.get(f"/{part}") or f"--{part} {name}=VALUE"
    setting = undecided.get(name if part == "strategy" else f"{part}.{name}")
    said = f"{setting.file}, line {setting.line} says {setting.text!r}, which is not understood; " if setting else ""
    return f"{said}give it with {option}"
