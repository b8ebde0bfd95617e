"""`meshwright knobs`: values of run-time knobs to try with a plan, proposed one by one, and what each was measured to cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.inputs import MAX_RESPONSE_BYTES, read_document
from app.cli.output import write_document
from cost_models.errors import InvalidInputError, Problem

if TYPE_CHECKING:
    from app.knobs.tuning import KnobTuning

knobs_app = typer.Typer(
    name="knobs",
    help="Tune by measurement what no formula prices: bucket sizes, prefetch, offload share.",
    no_args_is_help=True,
)
Storage = Annotated[
    str, typer.Option("--storage", metavar="URL", help="Where the tuning is kept, such as sqlite:///knobs.db.")
]
Name = Annotated[str | None, typer.Option("--name", help="Name of the tuning, needed if the storage has several.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@knobs_app.command()
def start(
    response: Annotated[str, typer.Argument(help="Plan response: what `meshwright plan --json` printed; - for stdin.")],
    *,
    storage: Storage,
    plan: Annotated[int, typer.Option(metavar="RANK", help="Rank of the plan.", min=1)] = 1,
    name: Name = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampler.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Begin tuning one plan, and show its knobs."""
    from app.knobs.storage import is_in_memory
    from app.knobs.tuning import KnobTuning

    if is_in_memory(storage):
        message = f"storage {storage!r} is in memory and would be lost when this command ends"
        raise InvalidInputError([Problem("/storage", message, "Name a file, such as sqlite:///knobs.db.")])
    document = read_document(response, most_bytes=MAX_RESPONSE_BYTES)
    tuning = KnobTuning.start(document, storage=storage, plan=plan, name=name, seed=seed)
    if as_json:
        write_document({"name": tuning.name, "knobs": tuning.knobs})
        return
    typer.echo(f"tuning {tuning.name}")
    for flag, knob in tuning.knobs.items():
        low, high, default = (_number(knob[key]) for key in ("low", "high", "default"))
        typer.echo(f"{flag}: {knob['meaning']}, {low} to {high}, default {default}")


@knobs_app.command()
def ask(*, storage: Storage, name: Name = None, as_json: AsJson = False) -> None:
    """Print the next values to run. The first ones are the framework's defaults."""
    _show(_resumed(storage, name).ask(), as_json=as_json)


@knobs_app.command()
def tell(
    trial: Annotated[int, typer.Argument(help="Number that `ask` printed.", min=0)],
    step_time_s: Annotated[float | None, typer.Argument(help="Measured median seconds of a step.")] = None,
    *,
    storage: Storage,
    name: Name = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="The trial could not run, for example for lack of memory.")
    ] = False,
) -> None:
    """Report how long a step of a trial took."""
    if failed is (step_time_s is not None):
        hint = "For example: meshwright knobs tell 3 1.25, or meshwright knobs tell 3 --failed."
        raise InvalidInputError([Problem("", "give either a step time or --failed", hint)])
    _resumed(storage, name).tell(trial, step_time_s)


@knobs_app.command()
def best(*, storage: Storage, name: Name = None, as_json: AsJson = False) -> None:
    """Print the best values so far, and what they gain over the framework's defaults."""
    found = _resumed(storage, name).best()
    if as_json:
        write_document(found)
        return
    typer.echo(f"trials: {found['told']} told, {found['failed']} failed, {found['open']} open", err=True)
    if found["best"] is None:
        typer.echo("No trial has been told yet.", err=True)
        return
    _show(found["best"], as_json=False)
    typer.echo(
        f"{found['best']['step_time_s']:.6g} s a step; the plan predicted {found['predicted_step_time_s']:.6g} s"
    )
    if found["gain_fraction"] is None:
        typer.echo("The trial with the framework's defaults was not told, so the gain is not known.")
    elif found["gain_fraction"] <= 0.0:
        typer.echo("No trial so far is faster than the framework's defaults.")
    else:
        typer.echo(
            f"That is {100 * found['gain_fraction']:.2f} % less than with the framework's defaults ({found['default_step_time_s']:.6g} s). "
            "Each was run once, so measure both again before you rely on a small gain."
        )


def _number(value: float) -> str:
    """Sizes as whole numbers, which is how flags take them; shares with their decimals."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def _resumed(storage: str, name: str | None) -> KnobTuning:
    from app.knobs.tuning import KnobTuning

    return KnobTuning.resume(storage, name=name)


def _show(trial: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_document(trial)
        return
    typer.echo(f"trial {trial['trial']}")
    typer.echo(" ".join(trial["arguments"]) if "arguments" in trial else json.dumps(trial["config"], indent=2))
