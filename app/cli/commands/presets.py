"""`meshwright presets`: the models, GPUs, clusters and frameworks that can be named, as a list or one in full.

As JSON it is what `GET /v1/presets/…` of a service answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn, get_args

import typer

from app.cli.completion import Kind as PresetKind
from app.cli.completion import choices, name_of_kind, names_of
from app.cli.output import reader_may_leave, write_document
from cost_models.errors import InvalidInputError, Problem
from cost_models.hints import choice_hint, shown

if TYPE_CHECKING:
    from app.cli.inputs import Json

KINDS: tuple[PresetKind, ...] = get_args(PresetKind)


def presets(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            autocompletion=choices(KINDS),
            help="models, gpus, clusters or frameworks.",
            show_default="all",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=name_of_kind,
            help="One of them, which is shown in full.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what the service answers, as one JSON object.")
    ] = False,
) -> None:
    """List the models, GPUs, clusters and frameworks that can be named, or show one in full."""
    # Whatever is wrong with the names is told before the first line is printed.
    chosen, name = _chosen(kind, name)
    with reader_may_leave():
        if chosen is None:
            _tell_all(as_json=as_json)
        elif name is None:
            _tell_list(chosen, as_json=as_json)
        else:
            _tell_one(chosen, name, as_json=as_json)


def documents_of(kind: PresetKind) -> list[Json]:
    """What the service lists of a kind."""
    # The rules of frameworks load the planner, which lists of models do without.
    if kind == "frameworks":
        from planner.frameworks import framework_documents

        return framework_documents()
    from cost_models.presets import documents

    return documents(kind)


def _chosen(kind: str | None, name: str | None) -> tuple[PresetKind | None, str | None]:
    """The kind and the name that are meant. A preset's name alone says its kind."""
    if kind is None:
        return None, None
    found = next((each for each in KINDS if each == kind.lower()), None)
    if found is None and name is None:
        found, name = next(((each, kind) for each in KINDS if kind in names_of(each)), (None, None))
    if found is None:
        known = [*KINDS, *(each for kind_ in KINDS for each in names_of(kind_))] if name is None else KINDS
        hint = choice_hint(kind, known) if name is not None or len(kind) > 1 else f"Known: {', '.join(KINDS)}."
        _refuse(f"{shown(kind)} is not a kind of preset{' nor the name of one' if name is None else ''}", hint)
    if name is not None and name not in names_of(found):
        one = "GPU preset" if found == "gpus" else "framework" if found == "frameworks" else f"{found[:-1]} preset"
        _refuse(f"{shown(name)} is not a {one}", choice_hint(name, names_of(found)))
    return found, name


def _tell_all(*, as_json: bool) -> None:
    if as_json:
        write_document({kind: {"items": documents_of(kind)} for kind in KINDS})
        return
    from app.cli.rendering.preset_tables import print_overview

    print_overview({kind: names_of(kind) for kind in KINDS})


def _tell_list(kind: PresetKind, *, as_json: bool) -> None:
    if as_json:
        write_document({"items": documents_of(kind)})
        return
    from app.cli.rendering.preset_tables import print_list

    print_list(kind, documents_of(kind))


def _tell_one(kind: PresetKind, name: str, *, as_json: bool) -> None:
    document = next(each for each in documents_of(kind) if each["name"] == name)
    if as_json:
        write_document(document)
        return
    from app.cli.rendering.preset_tables import print_framework, print_preset

    if kind == "frameworks":
        print_framework(document)
        return
    from cost_models.presets import origins

    print_preset(kind, document, origins(kind, name))


def _refuse(message: str, hint: str) -> NoReturn:
    raise InvalidInputError([Problem("", message, hint, "unknown-preset")])
