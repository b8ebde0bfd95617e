"""`meshwright profile`: measure this machine, show what was measured, find what would spoil it, send it to a service.

Under torchrun or srun every process runs this command, and only rank 0 prints. torch is loaded when something is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import require_name
from app.cli.progress import StatusLine
from app.errors import UnavailableError
from app.quantities import duration_s
from cost_models.errors import InvalidInputError, MeasurementError, MeshwrightError, Problem

if TYPE_CHECKING:
    from cost_models.calibration import CalibrationDocument
    from profiler.agent import MeasurementProgress, Outcome
    from profiler.ranks import Ranks

profile_app = typer.Typer(name="profile", help="Measure what this machine can do.", no_args_is_help=True)
_LEAST_S = 1.0
"""Below a second nothing can be measured."""
Server = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Service to send the calibration to.", envvar="MESHWRIGHT_SERVER"),
]
Token = Annotated[str | None, typer.Option(metavar="KEY", help="Key for the service.", envvar="MESHWRIGHT_TOKEN")]


class DeviceChoice(StrEnum):
    CUDA = "cuda"
    CPU = "cpu"


@profile_app.command()
def run(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="File to write the calibration to.")],
    *,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time to spend, such as 60s or 5m.")] = "5m",
    server: Server = None,
    token: Token = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the calibration.", show_default="the name of the file")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="GPU preset to use if the driver's name for the GPU matches none."),
    ] = None,
    merge: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Earlier calibration of this machine, from which to take what is not measured now."
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of continuing a stopped run.")] = False,
    allow_busy: Annotated[
        bool, typer.Option("--allow-busy", help="Measure even if other processes use the GPU.")
    ] = False,
    device: Annotated[
        DeviceChoice, typer.Option(help="cpu runs every benchmark on the processor, to try the agent out.")
    ] = DeviceChoice.CUDA,
    framework: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Framework that will be planned: what its layers cost the host is measured first.",
        ),
    ] = None,
    drives: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder on the node's drives, to measure them; a GiB a rank is written."),
    ] = None,
) -> None:
    """Measure this node, or under torchrun or srun all their nodes."""
    # Before anything is loaded: the budget covers what a user waits for, and importing torch takes seconds.
    began_s = time.perf_counter()
    require_name(out, option="--out", example="calibration.json")
    budget_s = duration_s(budget, option="--budget", least_s=_LEAST_S)
    from cost_models.hardware import read_document
    from profiler.agent import Settings, measure
    from profiler.ranks import ranks_from
    from profiler.timing import launched_s

    started_s = began_s - launched_s()

    if not out.absolute().parent.is_dir():
        raise MeasurementError(
            f"the folder {out.absolute().parent} does not exist", hint="Create it, or choose another file with --out."
        )
    place = ranks_from(os.environ)
    settings = Settings(
        out=out,
        budget_s=budget_s,
        device=device.value,
        started_s=started_s,
        name=name or out.stem,
        gpu=gpu,
        merge_with=tuple(read_document(path) for path in merge or ()),
        fresh=fresh,
        allow_busy=allow_busy,
        framework=_known(framework),
        drives=drives,
    )
    with _MeasuringLine(place, quiet=context.obj["quiet"]) as line:
        outcome = measure(settings, place, on_progress=line.keep)
    if outcome.document is None or outcome.path is None:
        raise typer.Exit(outcome.exit_code)
    _tell(outcome, elapsed_s=time.perf_counter() - started_s, quiet=context.obj["quiet"])
    if not outcome.is_complete:
        raise typer.Exit(130)
    if server is not None:
        _send(outcome.document, server=server, token=token)


def _known(framework: str | None) -> str | None:
    from cost_models.frameworks import FRAMEWORKS

    if framework is not None and framework not in FRAMEWORKS:
        raise InvalidInputError([Problem("", f"{framework!r} is no framework", f"Known are {', '.join(FRAMEWORKS)}.")])
    return framework


@profile_app.command()
def show(
    file: Annotated[str, typer.Argument(help="Calibration file, or the name of a shipped one.")],
    *,
    html: Annotated[Path | None, typer.Option(help="Also write an HTML page with tables and plots.")] = None,
    png: Annotated[Path | None, typer.Option(help="Also write the plots as an image, which needs matplotlib.")] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Print a cluster specification that uses this calibration, as JSON.")
    ] = False,
    num_nodes: Annotated[int | None, typer.Option(help="Nodes of that cluster.", min=1)] = None,
) -> None:
    """Print what a calibration contains."""
    from app.cli.rendering.profile_tables import cluster_of, print_report

    for option, path in (("--html", html), ("--png", png)):
        if path is not None:
            require_name(path, option=option, example=f"calibration.{option[2:]}")
    document = _document(file)
    if cluster:
        sys.stdout.write(json.dumps(cluster_of(document, num_nodes=num_nodes, reference=file), allow_nan=False) + "\n")
        return
    print_report(document)
    if html is not None or png is not None:
        from app.cli.rendering.profile_plots import write_html, write_png

        for path, write in ((html, write_html), (png, write_png)):
            if path is not None:
                write(document, path)
                typer.echo(f"wrote {path}", err=True)


@profile_app.command()
def doctor(
    *,
    out: Annotated[Path, typer.Option(help="Where the calibration would be written.")] = Path("calibration.json"),
    device: Annotated[DeviceChoice, typer.Option(help="What would be measured.")] = DeviceChoice.CUDA,
) -> None:
    """Say what would stop or spoil a measurement here. The exit code is 5 if something would stop it."""
    from profiler.machine.doctor import examine

    require_name(out, option="--out", example="calibration.json")
    findings = examine(device=device.value, out=out, environment=os.environ)
    for finding in findings:
        typer.echo(f"{finding.level:8} {finding.subject}: {finding.message}")
        if finding.hint and finding.level != "ok":
            typer.echo(f"{'':8} {finding.hint}")
    if any(finding.level == "stop" for finding in findings):
        raise typer.Exit(5)


@profile_app.command()
def send(
    files: Annotated[
        list[str] | None, typer.Argument(help="Calibration files. Without any, those that wait are sent.")
    ] = None,
    *,
    server: Annotated[str, typer.Option(help="Service to send to.", envvar="MESHWRIGHT_SERVER")],
    token: Token = None,
) -> None:
    """Send calibrations to a service, together with those that wait for it."""
    documents = [_document(file) for file in files or ()]
    outbox = _outbox()
    for document in documents:
        outbox.put(document, server=server)
    _deliver(server=server, token=token)


# --- sending ----------------------------------------------------------------------------------------------------------


def _outbox() -> Any:
    from app.settings import default_data_dir
    from profiler.outbox import Outbox

    return Outbox(default_data_dir() / "outbox")


def _send(document: CalibrationDocument, *, server: str, token: str | None) -> None:
    # Into the outbox first: what was measured must not be lost because the service is away when it ends.
    _outbox().put(document, server=server)
    _deliver(server=server, token=token)


def _deliver(*, server: str, token: str | None) -> None:
    """Sends what waits for this service. What it refuses, or cannot take now, stays in the outbox."""
    from app.cli.client import Client

    with Client(server, token=token) as client:
        delivery = _outbox().deliver(server, client.upload_calibration)
    for calibration_id in delivery.sent:
        typer.echo(f"{server} has calibration {calibration_id}", err=True)
    for path in delivery.damaged:
        typer.echo(f"warning: {path} is damaged and was not sent", err=True)
    if delivery.problem is None:
        return
    # Raised as the error that stopped the sending, so that the exit code tells a service that is away from one that refuses. The
    # entries of an invalid document point into a file that the user did not write, so only its summary is kept.
    kept = (
        f"{len(delivery.waiting)} calibrations are waiting; send them with `meshwright profile send --server {server}`"
    )
    error = delivery.problem
    hint = f"{error.hint} {kept}." if error.hint else f"{kept}."
    family = type(error) if not isinstance(error, InvalidInputError) else MeshwrightError
    raise (UnavailableError if isinstance(error, UnavailableError) else family)(error.message, hint=hint)


# --- talking ----------------------------------------------------------------------------------------------------------


class _MeasuringLine(StatusLine):
    """The line of a measurement on rank 0: how much of the budget is spent, and what is measured."""

    def __init__(self, place: Ranks, *, quiet: bool) -> None:
        super().__init__(self._told, quiet=quiet or place.rank != 0)
        self._last: MeasurementProgress | None = None

    def keep(self, progress: MeasurementProgress) -> None:
        self._last = progress

    def _told(self, elapsed_s: float) -> str:
        last = self._last
        if last is None:
            return f"Measuring for {elapsed_s:.0f} s"
        return f"Measuring for {elapsed_s:.0f} of {last.budget_s:.0f} s: {last.doing} ({last.done} of {last.total})"


def _tell(outcome: Outcome, *, elapsed_s: float, quiet: bool) -> None:
    assert outcome.document is not None
    for warning in outcome.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if quiet:
        return
    document = outcome.document
    counts = (
        f"{len(document.gemm)} products, {len(document.collectives)} collectives, {len(document.attention)} attention"
    )
    state = "complete" if outcome.is_complete else "stopped early; run the same command to continue"
    typer.echo(f"{outcome.path}: {counts} ({elapsed_s:.0f} s, {state}), id {document.id}", err=True)


def _document(file: str) -> CalibrationDocument:
    from cost_models.hardware import read_document, shipped_document

    shipped = shipped_document(file)
    return shipped if shipped is not None else read_document(Path(file))
