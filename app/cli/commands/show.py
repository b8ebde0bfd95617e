"""`meshwright show`: one plan of a response in full, an evaluation, or a tuning, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from app.cli.inputs import MAX_RESPONSE_BYTES, read_documents
from app.cli.output import reader_may_leave, write_document
from cost_models.errors import InvalidInputError, Problem

Json = dict[str, Any]


def show(
    context: typer.Context,
    response: Annotated[
        str,
        typer.Argument(help="Plan response, evaluations or tuning (file, or - for standard input)."),
    ],
    *,
    plan: Annotated[
        int | None,
        typer.Option(
            metavar="RANK",
            help="Rank of the plan; of several evaluations, the line.",
            show_default="1; of several evaluations, every line",
            min=1,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document for each plan shown.")] = False,
) -> None:
    """Show one plan in full: stages, memory, time, what is assumed, and what speaks for it. Of a tuning, all its trials."""
    from app.report.tuning.document import is_tuning
    from planner.one_plan.detail import plan_detail

    documents = read_documents(response, most_bytes=MAX_RESPONSE_BYTES)
    with reader_may_leave():
        if len(documents) == 1 and is_tuning(documents[0]):
            _show_tuning(documents[0], plan, as_json=as_json, quiet=context.obj["quiet"])
            return
        for number, (document, rank) in enumerate(_chosen(documents, plan)):
            detail = plan_detail(document, rank, allow_files=True)
            if as_json:
                write_document(detail)
                continue
            from app.cli.rendering.one_plan import print_plan

            if number:
                typer.echo()
            print_plan(detail, of=_count(document), quiet=context.obj["quiet"])


def _show_tuning(document: Json, plan: int | None, *, as_json: bool, quiet: bool) -> None:
    if plan is not None:
        message = f"--plan {plan} names a plan, but this is a tuning, whose trials are shown together"
        hint = "Leave --plan out; `meshwright plan` with the same request gives the plans themselves."
        raise InvalidInputError([Problem("", message, hint, "not-a-response")])
    from app.cli.rendering.tuning_table import print_tuning
    from app.report.tuning.document import read_tuning

    if as_json:
        read_tuning(document)
        write_document(document)
    else:
        print_tuning(document, quiet=quiet)


def _chosen(documents: list[Json], plan: int | None) -> Iterator[tuple[Json, int]]:
    """The documents to show, each with the rank to show of it."""
    # A ranked plan that was fetched by itself carries its rank, so that --plan need not repeat it.
    if len(documents) == 1:
        document = documents[0]
        alone = document["rank"] if isinstance(document.get("rank"), int) else 1
        yield document, plan or alone
        return
    if plan is not None and plan > len(documents):
        message = f"there is no line {plan}"
        raise InvalidInputError([Problem("", message, f"The input has {len(documents)} evaluations.", "unknown-plan")])
    for document in documents if plan is None else documents[plan - 1 : plan]:
        if "verdict" not in document:
            message = f"one of the lines is no evaluation: {json.dumps(document)[:60]}"
            hint = "Give one plan response, or what `meshwright evaluate` printed."
            raise InvalidInputError([Problem("", message, hint, "not-a-response")])
        yield document, 1


def _count(document: Json) -> int | None:
    plans = document.get("plans")
    return len(plans) if isinstance(plans, list) else None
