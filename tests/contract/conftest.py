"""Databases of the contract tests: SQLite always; PostgreSQL where a URL is given or its programs are installed."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from sqlalchemy import Engine, text

from app.service.db.engine import build_engine
from app.service.db.migrate import upgrade
from app.settings import Settings

FOLDERS = [Path(found).resolve().parent for name in ("postgres", "initdb") if (found := shutil.which(name))]


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of a PostgreSQL server in which databases may be made.

    Its folder is not one of pytest's, whose parents every later session of the same user closes to other users.
    """
    pytest.importorskip("psycopg", reason="psycopg (the extra `postgres`) is not installed")
    given = os.environ.get("MESHWRIGHT_TEST_POSTGRES")
    if given:
        yield given
        return
    if not FOLDERS:
        pytest.skip("neither MESHWRIGHT_TEST_POSTGRES nor the program initdb is there")
    folder = Path(tempfile.mkdtemp(prefix="meshwright-pg-"))
    user = _server_user(folder)
    data, programs = folder / "data", FOLDERS[-1]
    _run([programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N"], user=user)
    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
    control = [programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log"]
    _run([*control, "-o", options, "start"], user=user)
    yield f"postgresql://postgres@/postgres?host={folder}"
    _run([*control, "-m", "immediate", "stop"], user=user)
    shutil.rmtree(folder)


def _run(command: list[str | Path], *, user: str | None) -> None:
    subprocess.run(command, check=True, capture_output=True, user=user, cwd="/")


def _server_user(folder: Path) -> str | None:
    """PostgreSQL does not run as root: there it is started as its own user, whose folder it then must be."""
    if os.getuid() != 0:
        return None
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    shutil.chown(folder, "postgres")
    return "postgres"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    with _new_database(request.getfixturevalue("postgres_url")) as url:
        yield url


@pytest.fixture
def second_postgres_url(postgres_url: str) -> Iterator[str]:
    """URL of an empty PostgreSQL database, whatever `database_url` is."""
    with _new_database(postgres_url) as url:
        yield url


@contextmanager
def _new_database(postgres_url: str) -> Iterator[str]:
    server = Settings(database_url=postgres_url).url
    name = f"meshwright_{secrets.token_hex(6)}"
    administration = build_engine(server)
    with administration.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with administration.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    administration.dispose()


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A database with the newest schema."""
    engine = build_engine(database_url)
    upgrade(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def lasting_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The same for all tests of a module, which keep out of each other's way by tenants of their own."""
    with ExitStack() as kept:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('lasting') / 'test.db'}"
        else:
            url = kept.enter_context(_new_database(request.getfixturevalue("postgres_url")))
        engine = build_engine(url)
        upgrade(engine)
        yield engine
        engine.dispose()
