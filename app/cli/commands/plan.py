"""`meshwright plan`: a request from a file, from options or from both is planned here or by a service.

The answer is printed as a table or as JSON.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from app.cli.commands import plan_options as options
from app.cli.commands.plan_options import (
    given,
    included,
    numbers,
    pointers,
    those,
    training_fields,
    with_options_named,
)
from app.cli.documents import read_corrections, read_request
from app.cli.inputs import Json, assignments, read_cluster, read_model
from app.cli.output import reader_may_leave, write_document
from app.cli.progress import SearchLine
from app.quantities import COUNTED
from cost_models.errors import InvalidInputError, MeshwrightError, Problem

EXIT_NO_PLAN, EXIT_INTERRUPTED = 3, 130
TOP, MOST_ASKED = 10, 1000
"""Number of plans shown by default, and the most that a request may ask for."""
# Near-copies of a plan share its row, and three in four plans may be such. A table of fewer than TOP rows asks for as many plans
# as one of TOP, so that what is said under it does not change with its length.
SPARE = 4
"""Plans asked for per row of the table."""
TRAINING = "--seq-length, --global-batch-size, --framework and --precision"
_MORE = {
    "model": "`meshwright presets models` lists those that have a name.",
    "cluster": "`meshwright presets clusters` lists those that have a name.",
    "training": "",
}
BEST_SO_FAR, CANCELLING = "Stopping with the best plans so far.", "Cancelling the plan."
_BATCH = {"global_batch_size": "global_batch_tokens", "global_batch_tokens": "global_batch_size"}
"""The two ways to give a batch: who gives one in an option means it in place of the other in the file."""


def plan(
    context: typer.Context,
    request: options.Request = None,
    *,
    model: options.Model = None,
    cluster: options.Cluster = None,
    gpu: options.Gpu = None,
    seq_length: options.SeqLength = None,
    global_batch_size: options.GlobalBatchSize = None,
    global_batch_tokens: options.GlobalBatchTokens = None,
    framework: options.Framework = None,
    precision: options.Precision = None,
    num_nodes: options.NumNodes = None,
    gpus_per_node: options.GpusPerNode = None,
    calibration: options.Calibration = None,
    corrections: options.Corrections = None,
    framework_version: options.FrameworkVersion = None,
    total_tokens: options.TotalTokens = None,
    training: options.Training = None,
    top: options.Top = None,
    objective: options.Objective = None,
    deadline_h: options.DeadlineH = None,
    target_min_tokens_per_s: options.TargetMinTokensPerS = None,
    fixed: options.Fixed = None,
    allowed: options.Allowed = None,
    include: options.Include = None,
    time_limit: options.TimeLimit = None,
    as_json: options.AsJson = False,
    server: options.Server = None,
    token: options.Token = None,
) -> None:
    """Rank the ways to split a model's training over a cluster."""
    counts = numbers(
        seq_length=seq_length,
        global_batch_size=global_batch_size,
        global_batch_tokens=global_batch_tokens,
        total_tokens=total_tokens,
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        top_k=top,
        deadline_h=deadline_h,
        min_tokens_per_s=target_min_tokens_per_s,
        time_limit_s=time_limit,
    )
    parts = {
        "model": read_model(model) if model else {},
        "cluster": (read_cluster(cluster) if cluster else {})
        | given(gpu=gpu, calibration=calibration)
        | those(counts, "num_nodes", "gpus_per_node"),
        "training": those(counts, *COUNTED)
        | given(framework=framework, framework_version=framework_version, precision=precision)
        | training_fields(training or ()),
        "constraints": given(
            fixed=assignments(fixed or (), option="--fixed") or None,
            allowed=assignments(allowed or (), option="--allowed") or None,
        ),
        "targets": those(counts, "deadline_h", "min_tokens_per_s"),
    }
    document = merged_request(read_request(request) if request else {}, parts)
    own = those(counts, "top_k", "time_limit_s") | given(objective=objective) | included(document, include or ())
    own |= given(corrections=None if corrections is None else read_corrections(corrections))
    document |= own
    _require_job(document)
    wanted = document.get("top_k", TOP)
    document = document if as_json else with_spare_plans(document, wanted)
    quiet = context.obj["quiet"]
    try:
        response, is_interrupted = _planned(document, server=server, token=token, quiet=quiet)
    except InvalidInputError as error:
        raise with_options_named(error, None if request is None else pointers(parts | own)) from error
    with reader_may_leave():
        if as_json:
            write_document(response)
        else:
            from app.cli.rendering.plan_table import print_response

            source = source_of(request, with_options=any(parts.values()))
            print_response(response, most=wanted, quiet=quiet, source=source)
    if is_interrupted or not response["plans"]:
        raise typer.Exit(EXIT_INTERRUPTED if is_interrupted else EXIT_NO_PLAN)


def merged_request(document: Json, parts: dict[str, Json]) -> Json:
    """The request file with the options laid over it field by field; a new model or a new preset replaces the old one whole."""
    result = dict(document)
    for name, part in parts.items():
        if not part:
            continue
        old = result.get(name)
        # Fields of two models make no model. A cluster keeps its other fields, so that --num-nodes alone changes its size.
        if isinstance(old, dict) and name != "model" and "preset" not in part:
            # A batch in sequences and one in tokens would contradict each other.
            replaced = {_BATCH[field] for field in _BATCH.keys() & part.keys()} - part.keys()
            result[name] = {key: value for key, value in old.items() if key not in replaced} | part
        else:
            result[name] = part
    return result


def source_of(request: str | None, *, with_options: bool) -> str:
    """Where a request came from, as the header of its table says it."""
    if request is None:
        return "from options"
    return f"from {'standard input' if request == '-' else request}{' and options' if with_options else ''}"


def with_spare_plans(document: Json, wanted: Any) -> Json:
    """The request for more plans than the table shows, because near-copies of a plan share its row."""
    if isinstance(wanted, int) and 1 <= wanted <= MOST_ASKED // SPARE:
        return document | {"top_k": SPARE * max(wanted, TOP)}
    return document


def _require_job(document: Json) -> None:
    options = {"model": "--model", "cluster": "--cluster or --gpu", "training": TRAINING}
    missing = [
        Problem(
            f"/{name}",
            f"the request has no {name}",
            f"Give it in the request file or with {option}. {_MORE[name]}".rstrip(),
            code="missing-field",
        )
        for name, option in options.items()
        if name not in document
    ]
    if missing:
        raise InvalidInputError(missing)


def _planned(document: Json, *, server: str | None, token: str | None, quiet: bool) -> tuple[Json, bool]:
    """The response from here or from a service, and whether somebody stopped the search."""
    extras = document.get("include")
    interrupted: Callable[[], bool] = bool  # false until the search listens
    try:
        with (
            SearchLine(quiet=quiet, extras=extras if isinstance(extras, list) else ()) as line,
            stop_on_interrupt(line.say, BEST_SO_FAR if server is None else CANCELLING) as interrupted,
        ):
            if server is None:
                from planner.plan import plan as build_plan

                answer = build_plan(document, allow_files=True, on_progress=line.on_progress, should_stop=interrupted)
            else:
                from app.cli.client import Client

                with Client(server, token=token) as client:
                    answer = client.plan(document, on_progress=line.on_progress, should_stop=interrupted)
    except MeshwrightError as error:
        if not interrupted():
            raise
        # A service keeps nothing of a plan that was cancelled, so that there is no answer to print.
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from error
    return answer, interrupted()


@contextmanager
def stop_on_interrupt(
    say: Callable[[str], None] | None = None, message: str = BEST_SO_FAR
) -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks the search to stop with the best plans so far; a second Ctrl-C ends the program at once.

    `say` prints the message for whoever pressed it; left out, it goes to stderr.
    """
    stopped = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True
        told = f"{message} Press Ctrl-C again to leave at once."
        if say is None:
            typer.echo(told, err=True)
        else:
            say(told)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: stopped
    finally:
        signal.signal(signal.SIGINT, previous)
