"""`meshwright collectives`: time by size of each algorithm of a collective on a cluster, with measured points beside."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from app.cli.inputs import read_cluster
from app.cli.output import reader_may_leave, require_free, write_document, write_file
from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import choice_hint, shown
from cost_models.operations import OPS, Op

if TYPE_CHECKING:
    from cost_models.specs.cluster import Cluster
    from cost_models.specs.collectives import Library


class LibraryChoice(StrEnum):
    """Whose algorithms are shown."""

    NCCL = "nccl"
    RCCL = "rccl"
    MSCCL = "msccl"
    GLOO = "gloo"
    ALL = "all"


def collectives(
    *,
    cluster: Annotated[str, typer.Option(metavar="CLUSTER", help="Preset, or file with a cluster specification.")],
    op: Annotated[str, typer.Option(metavar="OP", help=f"One of {', '.join(OPS)}.")] = "all_reduce",
    num_nodes: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Nodes of the cluster.", show_default="the cluster's")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Ranks of the group.", show_default="all GPUs")
    ] = None,
    stride: Annotated[int, typer.Option(metavar="N", min=1, help="Distance between neighbours, in ranks.")] = 1,
    library: Annotated[
        LibraryChoice | None,
        typer.Option(help="Whose algorithms are shown.", show_default="the cluster's"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as one JSON object.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with the curves.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a page that is there.")] = False,
) -> None:
    """Show time by size for each algorithm of a collective, as plans are priced, with what was measured."""
    operation = _operation(op)
    if html is not None:
        require_free(html, "-", force=force)
    from cost_models.hardware import load_calibration
    from cost_models.inputs.cluster import resolve_cluster
    from planner.answer.collective_curves import collective_curves

    given = read_cluster(cluster)
    resolved = resolve_cluster(given if num_nodes is None else {**given, "num_nodes": num_nodes})
    document = collective_curves(
        load_calibration(resolved, allow_files=True), operation, ranks=ranks or resolved.num_gpus, stride=stride,
        libraries=_libraries(library, resolved),
    )  # fmt: skip
    if html is not None:
        from app.report.collectives import collectives_file

        write_file(html, collectives_file(document))
    with reader_may_leave():
        if as_json:
            write_document(document)
            return
        from rich.console import Console

        from app.cli.rendering.collective_table import collective_parts

        console = Console(highlight=False)
        for part in collective_parts(document):
            console.print(part)


def _operation(name: str) -> Op:
    found = next((op for op in OPS if op == name.replace("-", "_")), None)
    if found is None:
        problem = Problem("", f"--op {shown(name)} is no operation", choice_hint(name, OPS))
        raise InvalidInputError([problem])
    return found


def _libraries(choice: LibraryChoice | None, cluster: Cluster) -> tuple[Library, ...] | None:
    """The libraries to show; None for the cluster's own."""
    from cost_models.specs.collectives import Library

    if choice is None:
        return None
    # NCCL runs on NVIDIA's GPUs and RCCL on AMD's; the others run on both.
    foreign = "nccl" if cluster.gpu.generation.startswith("cdna") else "rccl"
    if choice == foreign:
        message = f"--library {choice} does not run on {cluster.gpu.name}"
        raise InvalidInputError([Problem("", message, "Choose another, or all.")])
    names: tuple[Library, ...] = get_args(Library)
    return tuple(name for name in names if name != foreign and choice in (LibraryChoice.ALL, name))
