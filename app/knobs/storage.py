"""Where tunings of knobs are kept: Optuna's tables at a SQLAlchemy URL, and what can be wrong with it, in one line each.

A SQLite file of something else is never written to: Optuna would make its tables in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.errors import NotFoundError, UnavailableError, WrongStateError
from cost_models.errors import InvalidInputError, Problem
from planner.search.bayes import TABLES, open_storage, storage_errors

_HINT = "Give a SQLAlchemy URL, such as sqlite:///knobs.db or postgresql+psycopg://user@host/name."


def opened_storage(url: str, *, must_exist: bool) -> Any:
    """Optuna's storage at a URL.

    Args:
        url: SQLAlchemy URL.
        must_exist: whether it must hold Optuna's tables already; else they are made.

    Raises:
        InvalidInputError: no URL that can be used; NotFoundError: nothing there; WrongStateError: something else's.
        UnavailableError: the database does not answer.
    """
    from sqlalchemy.exc import ArgumentError

    try:
        with running():
            _check_tables(url, must_exist=must_exist)
            return open_storage(url)
    except (ArgumentError, ImportError, ValueError, TypeError) as error:
        raise _unusable(url, str(error)) from error
    except RuntimeError as error:
        message = f"the tables in {storage_shown(url)} are of another version of Optuna"
        raise WrongStateError(message, hint="Give a storage of its own, or use the version that made it.") from error


def storage_shown(url: str) -> str:
    """A storage's URL without the password."""
    before, separator, after = url.partition("://")
    return f"{before}{separator}{after.rpartition('@')[2]}"


def is_in_memory(url: str) -> bool:
    """Whether what is kept there ends with the process."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return False
    return parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:")


@contextmanager
def running() -> Iterator[None]:
    """A database that goes away is an error of its own."""
    from sqlalchemy.exc import DBAPIError

    refusals: tuple[type[Exception], ...] = (DBAPIError, *storage_errors())
    try:
        yield
    except refusals as error:
        message = f"the storage refuses: {_reason(error)}"
        raise UnavailableError(message, hint="Is the database there, and may it be written?") from error


def _reason(error: BaseException) -> str:
    """What the driver said, however it was wrapped."""
    cause: BaseException | None = error
    while cause is not None:
        if (said := getattr(cause, "orig", None)) is not None:
            return str(said).splitlines()[0]
        cause = cause.__cause__ or cause.__context__
    return str(error).splitlines()[0]


def _check_tables(url: str, *, must_exist: bool) -> None:
    """Refuses a database without Optuna's tables where they must be, and a SQLite file with only others."""
    from sqlalchemy import create_engine, inspect
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import DBAPIError

    parsed = make_url(url)
    is_file = parsed.get_backend_name() == "sqlite" and bool(parsed.database) and not is_in_memory(url)
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
                url, _reason(error), hint="Give a file of its own, in a folder that may be written."
            ) from error
        raise
    finally:
        engine.dispose()
    if names >= TABLES:
        return
    if is_file and names:
        some = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
        message = f"{storage_shown(url)} holds tables of something else ({some})"
        raise WrongStateError(message, hint="Give a file of its own.")
    if must_exist:
        raise NotFoundError(f"{storage_shown(url)} has no tuning", hint="Start one from a plan response first.")


def _unusable(url: str, reason: str, *, hint: str = _HINT) -> InvalidInputError:
    message = (
        f"storage {storage_shown(url)!r} cannot be used: {reason.splitlines()[0] if reason else 'no reason given'}"
    )
    return InvalidInputError([Problem("/storage", message, hint)])
