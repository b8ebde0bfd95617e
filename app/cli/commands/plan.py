"""`meshwright plan`: a request from a file, from options or from both is planned here or by a service.

The answer is printed as a table or as JSON.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, get_args

import typer

from app.cli.inputs import Json, assignments, read_cluster, read_document, read_model
from app.cli.output import reader_may_leave, write_document
from cost_models.errors import InvalidInputError, Problem
from cost_models.specs.training import Framework as FrameworkName

EXIT_NO_PLAN, EXIT_INTERRUPTED = 3, 130
TOP, MOST_ASKED = 10, 1000
"""Number of plans shown by default, and the most that a request may ask for."""
# Near-copies of a plan share its row, and three in four plans may be such. A table of fewer than TOP rows asks for as many plans
# as one of TOP, so that what is said under it does not change with its length.
SPARE = 4
"""Plans asked for per row of the table."""
TRAINING = "--seq-length, --global-batch-size, --precision and --framework"
REQUEST, JOB, SEARCH, OUTPUT = "Request", "Job", "Search", "Output"
Framework = Annotated[
    str | None,
    typer.Option(help=f"One of {', '.join(get_args(FrameworkName))}.", rich_help_panel=JOB),
]
FrameworkVersion = Annotated[
    str | None,
    typer.Option(help="Release of the framework, such as 0.16; each framework has a default.", rich_help_panel=JOB),
]
Server = Annotated[
    str | None,
    typer.Option(help="Let this service do the planning.", envvar="MESHWRIGHT_SERVER", rich_help_panel=OUTPUT),
]
Token = Annotated[
    str | None, typer.Option(help="Key for the service.", envvar="MESHWRIGHT_TOKEN", rich_help_panel=OUTPUT)
]


def plan(
    context: typer.Context,
    request: Annotated[str | None, typer.Argument(help="Plan request (JSON file, or - for standard input).")] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(help="Preset name, config.json (or its folder) or model specification.", rich_help_panel=JOB),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Preset name or cluster specification.", rich_help_panel=JOB)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="GPU preset name, such as H100-SXM-80GB.", rich_help_panel=JOB)
    ] = None,
    num_nodes: Annotated[int | None, typer.Option(help="Nodes of the cluster.", rich_help_panel=JOB)] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of each node.", rich_help_panel=JOB)] = None,
    calibration: Annotated[
        str | None, typer.Option(help="Calibration: a file or a shipped name.", rich_help_panel=JOB)
    ] = None,
    seq_length: Annotated[int | None, typer.Option(help="Tokens per sequence.", rich_help_panel=JOB)] = None,
    global_batch_size: Annotated[int | None, typer.Option(help="Sequences per step.", rich_help_panel=JOB)] = None,
    framework: Framework = None,
    framework_version: FrameworkVersion = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp16, fp8, nvfp4 or fp32.", rich_help_panel=JOB)] = None,
    training: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Any other training field: --training 'adapter={\"rank\": 16}' plans LoRA.",
            rich_help_panel=JOB,
        ),
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="Number of plans to show, not counting near-copies.", rich_help_panel=SEARCH)
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="step_time, cost or fewest_gpus.", rich_help_panel=SEARCH)
    ] = None,
    fixed: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Fix a strategy field: --fixed tp=8.", rich_help_panel=SEARCH),
    ] = None,
    allowed: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=LIST", help="Values to search: --allowed zero=[0,1].", rich_help_panel=SEARCH),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan response as JSON.", rich_help_panel=OUTPUT)
    ] = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Rank the ways to split a model's training over a cluster."""
    parts = {
        "model": read_model(model) if model else {},
        "cluster": (read_cluster(cluster) if cluster else {})
        | _given(gpu=gpu, num_nodes=num_nodes, gpus_per_node=gpus_per_node, calibration=calibration),
        "training": _given(
            seq_length=seq_length,
            global_batch_size=global_batch_size,
            framework=framework,
            framework_version=framework_version,
            precision=precision,
        )
        | assignments(training or (), option="--training"),
        "constraints": _given(
            fixed=assignments(fixed or (), option="--fixed") or None,
            allowed=assignments(allowed or (), option="--allowed") or None,
        ),
    }
    document = merged_request(read_document(request) if request else {}, parts) | _given(top_k=top, objective=objective)
    _require_job(document)
    wanted = document.get("top_k", TOP)
    document = document if as_json else with_spare_plans(document, wanted)
    with stop_on_interrupt() as interrupted:
        response = _planned(document, server=server, token=token, should_stop=interrupted)
    _print_response(response, as_json=as_json, most=wanted, quiet=context.obj["quiet"])
    if interrupted() or not response["plans"]:
        raise typer.Exit(EXIT_INTERRUPTED if interrupted() else EXIT_NO_PLAN)


def merged_request(document: Json, parts: dict[str, Json]) -> Json:
    """The request file with the options laid over it field by field; a new model or a new preset replaces the old one whole."""
    result = dict(document)
    for name, given in parts.items():
        if not given:
            continue
        old = result.get(name)
        # Fields of two models make no model. A cluster keeps its other fields, so that --num-nodes alone changes its size.
        if isinstance(old, dict) and name != "model" and "preset" not in given:
            result[name] = {**old, **given}
        else:
            result[name] = given
    return result


def with_spare_plans(document: Json, wanted: Any) -> Json:
    """The request for more plans than the table shows, because near-copies of a plan share its row."""
    if isinstance(wanted, int) and 1 <= wanted <= MOST_ASKED // SPARE:
        return document | {"top_k": SPARE * max(wanted, TOP)}
    return document


def _given(**options: Any) -> Json:
    return {name: value for name, value in options.items() if value is not None}


def _require_job(document: Json) -> None:
    options = {"model": "--model", "cluster": "--cluster or --gpu", "training": TRAINING}
    missing = [
        Problem(
            f"/{name}",
            f"the request has no {name}",
            f"Give it in the request file or with {option}.",
            code="missing-field",
        )
        for name, option in options.items()
        if name not in document
    ]
    if missing:
        raise InvalidInputError(missing)


def _planned(document: Json, *, server: str | None, token: str | None, should_stop: Callable[[], bool]) -> Json:
    if server is not None:
        from app.cli.client import Client

        with Client(server, token=token) as client:
            return client.plan(document, should_stop=should_stop)
    from planner.plan import plan as build_plan

    return build_plan(document, allow_files=True, should_stop=should_stop)


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks the search to stop with the best plans so far; a second Ctrl-C ends the program at once."""
    stopped = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True
        typer.echo("Stopping with the best plans so far. Press Ctrl-C again to leave at once.", err=True)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: stopped
    finally:
        signal.signal(signal.SIGINT, previous)


def _print_response(response: Json, *, as_json: bool, most: int, quiet: bool) -> None:
    with reader_may_leave():
        if as_json:
            write_document(response)
        else:
            from app.cli.rendering.plan_table import print_response

            print_response(response, most=most, quiet=quiet)
