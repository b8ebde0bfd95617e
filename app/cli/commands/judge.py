"""`meshwright judge`: an existing configuration beside the best plan for the same job, and the difference as a diff of its files."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.commands.import_config import (
    EXIT_MISSING,
    Arguments,
    Files,
    Framework,
    Model,
    NumNodes,
    Strategy,
    Training,
    VocabSize,
    overrides,
    read_files,
    tell,
)
from app.cli.commands.plan import stop_on_interrupt
from app.cli.output import reader_may_leave, write_document
from app.cli.progress import SearchLine

EXIT_NO_PLAN = 3


def judge(
    context: typer.Context,
    files: Files = None,
    *,
    cluster: Annotated[str, typer.Option(metavar="NAME|FILE", help="Preset name or cluster specification.")],
    megatron_args: Arguments = None,
    num_nodes: NumNodes = None,
    model: Model = None,
    vocab_size: VocabSize = None,
    framework: Framework = None,
    training: Training = None,
    strategy: Strategy = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the judgement as one JSON object.")] = False,
) -> None:
    """Judge an existing configuration: its prediction, the best plan for the same job, and what each change gains."""
    from planner.export.import_config import import_config as read
    from planner.export.judge.judge import judge as judged

    given = overrides(
        cluster=cluster, num_nodes=num_nodes, model=model, vocab_size=vocab_size, training=training, strategy=strategy
    )
    texts = read_files(files or ())
    imported = read(texts, megatron_args=megatron_args, given=given, framework=framework, allow_files=True)
    tell(imported, quiet=context.obj["quiet"])
    if imported.missing:
        raise typer.Exit(EXIT_MISSING)
    with SearchLine(quiet=context.obj["quiet"]) as line, stop_on_interrupt(line.say) as interrupted:
        answer = judged(
            texts,
            megatron_args=megatron_args,
            given=given,
            framework=framework,
            allow_files=True,
            on_progress=line.on_progress,
            should_stop=interrupted,
        )
    with reader_may_leave():
        if as_json:
            write_document(answer)
        else:
            from app.cli.rendering.judgement import print_judgement

            print_judgement(answer)
    if answer["best"] is None:
        raise typer.Exit(EXIT_NO_PLAN)
