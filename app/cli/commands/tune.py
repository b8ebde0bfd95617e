"""`meshwright tune`: the best plans of a request are measured on this machine with real training steps, and ranked again."""

from __future__ import annotations

import json
import math
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.commands.plan import source_of
from app.cli.documents import read_request
from app.cli.inputs import Json
from app.cli.interruption import wound_up
from app.cli.output import reader_may_leave, require_name, require_other_file, write_document, write_file
from app.cli.progress import SearchLine, StatusLine
from app.quantities import duration_s
from cost_models.errors import InvalidInputError, MeshwrightError, NotExpressibleError, Problem

if TYPE_CHECKING:
    from app.tuning.backends import Backend
    from app.tuning.loop import Event, Tuning
    from planner.search.standing import Limits, Stop

EXIT_NOT_WRITTEN, EXIT_NO_PLAN, EXIT_MEASUREMENT, EXIT_INTERRUPTED = 2, 3, 5, 130
PLANS = 40
"""Plans that are asked for where the request asks for fewer: near-copies of a plan, which are measured last, are among them."""
_LEAST_S = 1.0


class BackendOption(StrEnum):
    """What runs the trials."""

    PYTORCH = "pytorch"
    EXPORT = "export"


class DeviceOption(StrEnum):
    """What the trials run on."""

    CUDA = "cuda"
    CPU = "cpu"


BackendAsked = Annotated[
    BackendOption | None,
    typer.Option(
        help="What runs the steps: PyTorch's own parallelism, or the exported launch files.",
        show_default="pytorch for torchtitan, export for every other framework",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Target of the exported launch files, as in `meshwright export`.",
        show_default="the first one of the framework",
    ),
]
Storage = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where the tuning is kept, such as sqlite:///tune.db; the same command continues it.",
        show_default="only in memory",
    ),
]


def tune(
    context: typer.Context,
    request: Annotated[
        str, typer.Argument(help="Plan request, or what `plan --json` answered (JSON file, or - for standard input).")
    ],
    *,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Time that all trials together may take: 10m, 300s or 1h.")
    ] = "10m",
    max_trials: Annotated[int, typer.Option(metavar="N", min=1, help="Most trials that are started.")] = 8,
    gpu_hours: Annotated[
        float | None,
        typer.Option(metavar="H", min=0.0, help="Most GPU-hours that trials may take.", show_default="no limit"),
    ] = None,
    backend: BackendAsked = None,
    target: Target = None,
    trial_time: Annotated[
        str, typer.Option(metavar="TIME", help="Time after which a trial that has not ended counts as hung.")
    ] = "2m",
    knobs: Annotated[
        int, typer.Option(metavar="N", min=0, help="Trials of the best plan with other values of its run-time knobs.")
    ] = 0,
    storage: Storage = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the tuning in its storage.", show_default="made of the request"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws by which chances are estimated.")] = 0,
    device: Annotated[
        DeviceOption,
        typer.Option(help="What trials run on; cpu tries the loop out, its times say nothing of GPUs."),
    ] = DeviceOption.CUDA,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON document to this file.")] = None,
) -> None:
    """Measure the best plans on this machine with real training steps, and rank them again."""
    budget_s = duration_s(budget, option="--budget", least_s=_LEAST_S)
    if gpu_hours is not None and not 0.0 < gpu_hours < math.inf:
        message = f"--gpu-hours is {gpu_hours:g}; it must be a number above 0"
        raise InvalidInputError([Problem("", message, "Leave it out for no limit.")])
    deadline_s = duration_s(trial_time, option="--trial-time", least_s=_LEAST_S)
    if out is not None:
        require_name(out, option="--out", example="tuning.json")
        _require_folder(out)
        require_other_file(out, option="--out", read=[request])
    document = read_request(request)
    quiet = context.obj["quiet"]
    # Everything that can be refused is, before the plans are computed and before a process is started.
    from planner.search.standing import Limits

    limits = Limits(budget_s=budget_s, max_trials=max_trials, gpu_hours=gpu_hours)
    response = _planned(document, quiet=quiet)
    with wound_up():
        runner = _backend(response, asked=backend, target=target, device=device)
        tuning = _opened(response, runner, storage=storage, name=name, seed=seed, limits=limits)
        ended = _run(tuning, runner, deadline_s=deadline_s, quiet=quiet)
        found = _with_knobs(tuning, runner, ended, trials=knobs, deadline_s=deadline_s, storage=storage, quiet=quiet)
        is_kept = out is None or _is_written(out, found)
        # Still wound up: a batch system that is in a hurry sends several signals, and this may be the only copy.
        with reader_may_leave():
            if as_json or not is_kept:
                write_document(found)
            else:
                from app.cli.rendering.tuning_table import print_tuning

                print_tuning(found, quiet=quiet, source=source_of(request, with_options=False))
    # The document was printed in any case: what was measured before is kept.
    reasons = {each["reason"] for each in (found["stopped"], (found["knobs"] or {}).get("stopped")) if each is not None}
    if "cancelled" in reasons:
        raise typer.Exit(EXIT_INTERRUPTED)
    if found["best"] is None or "failed" in reasons:
        raise typer.Exit(EXIT_MEASUREMENT)
    if not is_kept:
        raise typer.Exit(EXIT_NOT_WRITTEN)


def _planned(document: Json, *, quiet: bool) -> Json:
    """The plan response of the request, with plans enough to choose from."""
    from planner.plan import plan

    asked = document.get("top_k")
    # Any other value than a number is for the planner to refuse.
    if asked is None or (type(asked) is int and 0 < asked < PLANS):
        document = document | {"top_k": PLANS}
    with SearchLine(quiet=quiet) as line:
        response = plan(document, allow_files=True, on_progress=line.on_progress)
    if not response["plans"]:
        typer.echo("error: no plan fits, so there is nothing to measure", err=True)
        for near in response["nearest_infeasible"][:1]:
            for reason in near["reasons"]:
                typer.echo(f"  {reason['message']} {reason['hint']}".rstrip(), err=True)
        raise typer.Exit(EXIT_NO_PLAN)
    return response


def _backend(response: Json, *, asked: BackendOption | None, target: str | None, device: DeviceOption) -> Backend:
    """What runs the trials, after this machine was looked at."""
    from app.tuning.backends import PyTorchBackend, backend_name
    from app.tuning.exports import ExportBackend, target_of
    from app.tuning.machine import require_machine
    from app.tuning.rows import trial_row

    framework = response["request"]["training"]["framework"]
    kind = backend_name(framework, None if asked is None else asked.value)
    if device is DeviceOption.CPU and kind == "export":
        message = "the exported launch files run on GPUs only"
        hint = "Leave --device out on a machine with GPUs; only plans for torchtitan can be tried on processors."
        if backend_name(framework, None) == "pytorch":
            hint = "Leave --backend out to try the plans on processors, or --device on a machine with GPUs."
        raise InvalidInputError([Problem("/device", message, hint)])
    if target is not None and kind == "pytorch":
        message = f"--target {target} names launch files, but the trials run with PyTorch's own parallelism"
        raise InvalidInputError([Problem("/target", message, "Add --backend export to run launch files.")])
    require_machine(response["request"]["cluster"], os.environ, device=device.value)
    if kind == "pytorch":
        return PyTorchBackend(device.value)
    first = trial_row(response, response["plans"][0]["rank"])
    return ExportBackend(target or target_of(framework, first))


def _opened(
    response: Json, runner: Backend, *, storage: str | None, name: str | None, seed: int, limits: Limits
) -> Tuning:
    """The tuning of that name in the storage, or a new one."""
    from app.tuning.stored import opened

    return opened(response, runner, storage=storage, name=name, seed=seed, limits=limits)


def _run(tuning: Tuning, runner: Backend, *, deadline_s: float, quiet: bool) -> Stop | None:
    """Runs trials; says why they ended where the study itself would have gone on."""
    from app.knobs.storage import running
    from planner.search.standing import Stop

    with _TrialLine(quiet=quiet) as line, running():
        try:
            tuning.run(runner, tell=line.keep, deadline_s=deadline_s)
        except KeyboardInterrupt:
            return Stop("cancelled", "Somebody stopped it. Trials that had ended are kept.")
        except MeshwrightError as error:
            # Before the first trial there is nothing to keep, and the error is all there is to say.
            if not tuning.study.told():
                raise
            line.say(f"error: {error.message}")
            return Stop("failed", " ".join(filter(None, (error.message, error.hint))))
    return None


def _with_knobs(
    tuning: Tuning,
    runner: Backend,
    ended: Stop | None,
    *,
    trials: int,
    deadline_s: float,
    storage: str | None,
    quiet: bool,
) -> Json:
    """The document, with the tuning of the best plan's knobs where it was asked for."""
    from app.knobs.storage import running

    with running():
        found = tuning.document(backend=runner.name, ended=ended)
    if not trials or ended is not None or found["best"] is None:
        return found
    from app.tuning.knobs import tune_knobs

    rank = found["best"]["rank"]

    def tell(values: Json, record: Json) -> None:
        if not quiet:
            ended = f"{record['step_time_s']:.4g} s a step" if record["status"] == "ok" else record["status"]
            typer.echo(f"knobs of plan {rank}: {ended} with {json.dumps(values)}", err=True)

    try:
        knobs = tune_knobs(
            tuning.response, rank, runner, trials=trials, deadline_s=deadline_s,
            storage=storage or "sqlite://", name=f"{found['id']}-knobs-{rank}", tell=tell,
        )  # fmt: skip
    except NotExpressibleError as error:
        # The plans were measured; that the best has no knobs is no failure.
        return found | {"warnings": [*found["warnings"], f"The knobs were not tuned: {error.message}. {error.hint}"]}
    if knobs["stopped"] is not None:
        said = f"Not all trials of run-time knobs were run: {knobs['stopped']['message']}"
        found["warnings"] = [*found["warnings"], said]
    return found | {"knobs": knobs}


class _TrialLine(StatusLine):
    """A line that stays for each trial, and below it the one that runs."""

    def __init__(self, *, quiet: bool) -> None:
        super().__init__(lambda elapsed_s: f"{self._doing} ({elapsed_s:.0f} s in all)", quiet=quiet)
        self._doing, self._quiet = "Looking at the plans", quiet

    def keep(self, event: Event) -> None:
        from app.cli.rendering.tuning_table import trial_line
        from app.tuning.loop import Begun, NotKept

        if isinstance(event, NotKept):
            # Also where nothing else is printed: it took minutes of GPUs, and `correct` reads it.
            self.say(f"The storage did not take this trial: {json.dumps(event.record, allow_nan=False)}")
        elif isinstance(event, Begun):
            self._doing = f"Measuring plan {event.rank}, expected to take {event.expected_step_time_s:.4g} s a step"
        elif not self._quiet:
            self.say(trial_line(event.trial))


def _require_folder(path: Path) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        message = f"--out {path} is a folder" if path.is_dir() else f"{path.absolute().parent} is not a folder"
        raise InvalidInputError([Problem("", message, "Give a file such as tuning.json.", "not-a-folder")])


def _is_written(path: Path, document: Json) -> bool:
    """Writes the document; says so where that is not possible. What was measured then stands on standard output."""
    try:
        write_file(path, json.dumps(document, allow_nan=False, indent=1) + "\n")
    except OSError as error:
        typer.echo(f"error: {path} cannot be written: {error.strerror}. The document is printed instead.", err=True)
        return False
    typer.echo(str(path), err=True)
    return True
