"""`meshwright agent`: a GPU node that measures, and runs trials, when a service asks it to. torch is loaded by these, never here."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.commands.profile import DeviceChoice, Token
from app.quantities import duration_s

if TYPE_CHECKING:
    from app.cli.agent.loop import AgentSettings
    from app.cli.client import Client

# Not --launcher: that one starts a process for each GPU, and the program that runs a trial starts these by itself.
TrialLauncher = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="Words put before the program that runs the trials of a tuning, such as 'srun --ntasks 1 --gpus 2'.",
        show_default="nothing",
    ),
]


def agent(
    context: typer.Context,
    *,
    server: Annotated[
        str,
        typer.Option(metavar="URL", help="Service that asks for measurements and trials.", envvar="MESHWRIGHT_SERVER"),
    ],
    token: Token = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the node, the same at every start.", show_default="the name of the host"
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="GPU preset of the node.", show_default="what the driver says"),
    ] = None,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(help="GPUs to measure on each node.", min=1, max=1024, show_default="all that are visible"),
    ] = None,
    num_nodes: Annotated[int, typer.Option(help="Nodes that --launcher starts on.", min=1, max=100_000)] = 1,
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Command that starts one process per GPU on every node, such as 'srun --ntasks-per-node 8'.",
            show_default="torchrun on this node",
        ),
    ] = None,
    trial_launcher: TrialLauncher = None,
    device: Annotated[
        DeviceChoice, typer.Option(help="cpu runs every benchmark on the processor, to try the agent out.")
    ] = DeviceChoice.CUDA,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for what is being measured; with --launcher, one that all nodes share.",
            show_default="the user's data folder",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End after one measurement or trial.")] = False,
    idle_limit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End when nothing was asked for so long, such as 10m.", show_default="never"),
    ] = None,
) -> None:
    """Measure this node, and run trials of plans on it, whenever a service asks for it."""
    from app.cli.agent.loop import AgentSettings
    from app.cli.client import Client
    from app.settings import default_data_dir
    from meshwright import __version__
    from profiler.machine.node import this_node
    from profiler.outbox import folder_name

    node = this_node(os.environ, device=device.value, gpu=gpu, gpus_per_node=gpus_per_node)
    known_as = name or socket.gethostname()[:80]
    settings = AgentSettings(
        registration={
            "name": known_as,
            "gpu": node.gpu,
            "gpus_per_node": node.gpus_per_node,
            "num_nodes": num_nodes,
            "product_version": __version__,
        },
        # Apart by service and node: home folders are often shared by nodes, and a result is for the service that asked.
        folder=(folder or default_data_dir() / "agent") / folder_name(server) / folder_name(known_as),
        device=device.value,
        launcher=launcher,
        trial_launcher=trial_launcher,
        once=once,
        idle_limit_s=None if idle_limit is None else duration_s(idle_limit, option="--idle-limit", least_s=1.0),
    )
    with Client(server, token=token, read_timeout_s=20.0) as client:
        _run(client, settings, quiet=context.obj["quiet"])


def _run(client: Client, settings: AgentSettings, *, quiet: bool) -> None:
    """Runs the agent until it has nothing more to do or a signal stops it."""
    from app.cli.agent.loop import Agent

    stopping, received = _stopped_by_signals()
    Agent(client, settings, stopping=stopping, tell=lambda text: None if quiet else typer.echo(text, err=True)).run()
    # A node that is shut down has ended in good order; Ctrl-C is told apart, as everywhere.
    if signal.SIGINT in received:
        raise typer.Exit(128 + signal.SIGINT)


def _stopped_by_signals() -> tuple[threading.Event, list[int]]:
    """An event that Ctrl-C and a terminate signal set from now on, and the signals that were received."""
    stopping, received = threading.Event(), list[int]()

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopping, received
