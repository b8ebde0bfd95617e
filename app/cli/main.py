"""The command line put together from its commands. Data goes to stdout, everything else to stderr.

Commands import what they need when they run, so that planning loads no server. This module is the outermost edge: it turns
errors into messages and exit codes, and an unexpected one into a request to report it.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.cli.commands.agent import agent
from app.cli.commands.collectives import collectives
from app.cli.commands.correct import correct
from app.cli.commands.evaluate import evaluate
from app.cli.commands.export import export
from app.cli.commands.import_config import import_config
from app.cli.commands.judge import judge
from app.cli.commands.knobs import knobs_app
from app.cli.commands.observe import observe
from app.cli.commands.plan import plan
from app.cli.commands.plan_options import EXAMPLES
from app.cli.commands.presets import presets
from app.cli.commands.profile import profile_app
from app.cli.commands.report import report
from app.cli.commands.service import db_app, keys_app, serve, worker
from app.cli.commands.show import show
from app.cli.commands.tune import tune
from app.errors import ServiceUnreachableError, UnavailableError
from cost_models.errors import InvalidInputError, MeasurementError, MeshwrightError

# 2 is what typer returns for a wrong option, and 130 is 128 + SIGINT, as shells report it. 3, which `plan` returns when no plan
# fits, is apart from all errors: scripts must be able to tell an answer from a failure.
EXIT_BUG, EXIT_BAD_INPUT, EXIT_UNREACHABLE, EXIT_MEASUREMENT, EXIT_INTERRUPTED = 1, 2, 4, 5, 130
EXIT_CODES: dict[type[MeshwrightError], int] = {
    MeasurementError: EXIT_MEASUREMENT,
    ServiceUnreachableError: EXIT_UNREACHABLE,
    UnavailableError: EXIT_UNREACHABLE,
    MeshwrightError: EXIT_BAD_INPUT,
}
"""Exit code of each error class; a class that is not listed takes its nearest listed base's."""
# A screenful: whoever has more problems than this corrects some and asks again.
SHOWN_PROBLEMS = 20


class LogLevel(StrEnum):
    """Levels of the log, least important first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


app = typer.Typer(
    name="meshwright",
    help="Finds how to split a large model's training over a GPU cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=EXAMPLES)(plan)
app.command()(evaluate)
app.command()(show)
app.command()(report)
app.command()(export)
app.command("import")(import_config)
app.command()(judge)
app.command()(tune)
app.command()(correct)
app.command()(observe)
app.command()(presets)
app.command()(collectives)
app.command()(serve)
app.command()(worker)
app.command()(agent)
app.add_typer(db_app)
app.add_typer(keys_app)
app.add_typer(profile_app)
app.add_typer(knobs_app)


def _show_version(value: bool) -> None:
    if value:
        from meshwright import __version__

        typer.echo(f"meshwright {__version__}")
        raise typer.Exit


@app.callback()
def configure(
    context: typer.Context,
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(help="Least level of what is logged on stderr.", show_default="warning, and info for serve"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on stderr but errors.")] = False,
) -> None:
    level = LogLevel.ERROR if quiet else log_level or LogLevel.WARNING
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    context.obj = {"quiet": quiet, "log_level": str(level) if quiet or log_level else None}


def run(arguments: Sequence[str]) -> int:
    """Runs the program with these arguments and returns its exit code; never raises."""
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name must not end the program
    try:
        app(list(arguments), prog_name="meshwright")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else EXIT_BUG if ended.code else 0
        if code == EXIT_BAD_INPUT:
            _hint_at_fixed(arguments)
        # The reader of a table or of --help left before the end, as `head` does; that is not a failure.
        if isinstance(ended.__context__, BrokenPipeError):
            code = 0
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except MeshwrightError as error:
        _print_error(error)
        code = next(EXIT_CODES[cls] for cls in type(error).__mro__ if cls in EXIT_CODES)
    except OSError as error:
        typer.echo(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "), err=True)
        code = EXIT_BAD_INPUT
    except Exception as error:  # noqa: BLE001 - the outermost edge
        _print_bug(error)
        code = EXIT_BUG
    return code


def _hint_at_fixed(arguments: Sequence[str]) -> None:
    """Says how to give a field of the strategy, if one was given as an option of its own."""
    from cost_models.synonyms import synonym
    from planner.schemas.strategy import StrategyInput

    for argument in arguments:
        name = argument.removeprefix("--").partition("=")[0]
        field = synonym(name) or name.replace("-", "_")
        if argument.startswith("--") and field in StrategyInput.model_fields:
            typer.echo(f"  {argument.partition('=')[0]} is a field of the strategy: --fixed {field}=VALUE", err=True)


def _replace_closed_streams() -> None:
    """Puts the null device in place of streams that were closed before the program began (`>&-`), which Python leaves as None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


def _print_error(error: MeshwrightError) -> None:
    problems = error.problems if isinstance(error, InvalidInputError) else ()
    if not problems:
        typer.echo(f"error: {error.message}", err=True)
        if error.hint:
            typer.echo(f"  {error.hint}", err=True)
    for problem in problems[:SHOWN_PROBLEMS]:
        typer.echo(
            f"error: {problem.pointer}: {problem.message}" if problem.pointer else f"error: {problem.message}", err=True
        )
        if problem.hint:
            typer.echo(f"  {problem.hint}", err=True)
    if (more := len(problems) - SHOWN_PROBLEMS) > 0:
        typer.echo(f"and {more} more {'problem' if more == 1 else 'problems'}", err=True)


def _print_bug(error: Exception) -> None:
    from meshwright import __version__

    # The traceback only with --log-level debug: to most users it hides the one line that says what to do.
    logging.getLogger("meshwright").debug("unexpected error", exc_info=error)
    where = ""
    if error.__traceback__ is not None:
        last = error.__traceback__
        while last.tb_next is not None:
            last = last.tb_next
        where = f" at {Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}"
    typer.echo(
        f"error: this is a bug in meshwright {__version__}: {type(error).__name__}: {str(error)[:500]}{where}\n"
        "  Please report it with the command and its input; --log-level debug prints the whole traceback.",
        err=True,
    )
