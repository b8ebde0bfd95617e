"""Where tunings of knobs are kept: Optuna's tables at a SQLAlchemy URL. Whatever is wrong with the URL is said in one line.

A SQLite file that belongs to something else is never opened by Optuna, which would create its tables in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.errors import NotFoundError, UnavailableError, WrongStateError
from cost_models.errors import InvalidInputError, Problem
from planner.search.bayes import TABLES, open_storage, storage_errors

_HINT = "Write it as a SQLAlchemy URL, such as sqlite:///knobs.db or postgresql+psycopg://user@host/name."


def opened_storage(url: str, *, must_exist: bool) -> Any:
    """Optuna's storage at a URL.

    Args:
        url: SQLAlchemy URL.
        must_exist: whether it must hold Optuna's tables already; otherwise they are created.

    Raises:
        InvalidInputError: the URL cannot be used.
        NotFoundError: there is no tuning at the URL.
        WrongStateError: the database belongs to something else.
        UnavailableError: the database does not answer.
    """
    from sqlalchemy.exc import ArgumentError

    try:
        with running():
            _check_tables(url, must_exist=must_exist)
            return open_storage(url, engine_options=_without_idle_connections(url))
    except (ArgumentError, ImportError, ValueError, TypeError) as error:
        raise _unusable(url, str(error)) from error
    except RuntimeError as error:
        message = f"another version of Optuna created the tables in {storage_shown(url)}"
        raise WrongStateError(
            message, hint="Use another storage, or the version of Optuna that created this one."
        ) from error


def _without_idle_connections(url: str) -> dict[str, Any]:
    """Options by which a connection is closed after each question: minutes lie between two trials, and nobody closes a tuning."""
    from sqlalchemy.pool import NullPool

    return {} if is_in_memory(url) else {"poolclass": NullPool}  # what is in memory ends with its connection


def storage_shown(url: str) -> str:
    """The URL of a storage without user and password, for messages."""
    before, separator, after = url.partition("://")
    return f"{before}{separator}{after.rpartition('@')[2]}"


def is_in_memory(url: str) -> bool:
    """Whether what is kept there is lost when the process ends."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return False
    return parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:")


@contextmanager
def running() -> Iterator[None]:
    """Turns the errors of a database that goes away into one of ours."""
    from sqlalchemy.exc import DBAPIError

    refusals: tuple[type[Exception], ...] = (DBAPIError, *storage_errors())
    try:
        yield
    except refusals as error:
        message = f"the storage refused: {_reason(error)}"
        raise UnavailableError(
            message, hint="Check that the database is running and that you may write to it."
        ) from error


def _reason(error: BaseException) -> str:
    """What the database driver said, however often its error was wrapped."""
    cause: BaseException | None = error
    while cause is not None:
        if (said := getattr(cause, "orig", None)) is not None:
            return str(said).splitlines()[0]
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]


def _check_tables(url: str, *, must_exist: bool) -> None:
    """Refuses a database without Optuna's tables if they must be there, and a SQLite file that holds only other tables."""
    from sqlalchemy import create_engine, inspect
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import DBAPIError

    parsed = make_url(url)
    is_file = parsed.get_backend_name() == "sqlite" and bool(parsed.database) and not is_in_memory(url)
    # Looked at on the disk first, because connecting to a SQLite file that does not exist would create it.
    if is_file and "uri" not in parsed.query and not Path(str(parsed.database)).exists():
        if must_exist:
            raise NotFoundError(
                f"{storage_shown(url)} does not exist", hint="Start a tuning from a plan response first."
            )
        if not Path(str(parsed.database)).absolute().parent.is_dir():
            raise _unusable(url, "its folder does not exist")
        return
    engine = create_engine(parsed)
    try:
        names = set(inspect(engine).get_table_names())
    except DBAPIError as error:
        if is_file:
            raise _unusable(
                url, _reason(error), hint="Choose another file, in a folder that you may write to."
            ) from error
        raise
    finally:
        engine.dispose()
    if names >= TABLES:
        return
    # A PostgreSQL database may well be shared, and its tables are told apart by name. A file with foreign tables is most likely a
    # mistake, such as the service's own.
    if is_file and names:
        some = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
        message = f"{storage_shown(url)} belongs to something else (it holds the tables {some})"
        raise WrongStateError(message, hint="Choose another file.")
    if must_exist:
        raise NotFoundError(f"{storage_shown(url)} holds no tuning", hint="Start one from a plan response first.")


def _unusable(url: str, reason: str, *, hint: str = _HINT) -> InvalidInputError:
    message = f"storage {storage_shown(url)!r} cannot be used: {reason.splitlines()[0] if reason else 'the driver gave no reason'}"
    return InvalidInputError([Problem("/storage", message, hint)])
