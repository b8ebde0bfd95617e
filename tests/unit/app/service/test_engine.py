"""The database connection: what it refuses, and how SQLite is made safe."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from app.service.db.engine import build_engine, reading, writing
from cost_models.errors import InvalidInputError


@pytest.mark.parametrize("url", ["nonsense", "oracle9i://host/name", "mysql+nodriver://host/name", ""])
def test_what_is_no_usable_url_is_bad_input(url: str) -> None:
    with pytest.raises(InvalidInputError, match="database URL"):
        build_engine(url)


def test_the_folder_of_the_file_is_made(tmp_path: Path) -> None:
    engine = build_engine(f"sqlite:///{tmp_path / 'a' / 'b' / 'c.db'}")
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    engine.dispose()
    assert (tmp_path / "a" / "b" / "c.db").exists()


def test_sqlite_is_opened_for_several_writers_with_foreign_keys(tmp_path: Path) -> None:
    engine = build_engine(f"sqlite:///{tmp_path / 'c.db'}")
    with reading(engine) as connection:
        pragmas = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "foreign_keys", "busy_timeout")
        ]
    engine.dispose()
    assert pragmas == ["wal", 1, 10_000]


def test_a_writer_takes_the_lock_when_it_begins_and_a_reader_never_does(tmp_path: Path) -> None:
    engine = build_engine(f"sqlite:///{tmp_path / 'c.db'}")
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    impatient = build_engine(f"sqlite:///{tmp_path / 'c.db'}?timeout=0")
    with writing(engine), reading(impatient) as reader:
        assert reader.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0
        reader.exec_driver_sql("PRAGMA busy_timeout=0")
        reader.rollback()
        with pytest.raises(OperationalError, match="locked"):
            reader.execution_options(meshwright_reads=False).exec_driver_sql("INSERT INTO t VALUES (1)")
    engine.dispose()
    impatient.dispose()


def modes(folder: Path) -> dict[str, str]:
    """Permissions of a folder's files, as `ls` numbers them."""
    return {file.name: oct(file.stat().st_mode & 0o777) for file in folder.iterdir()}


@pytest.fixture
def open_umask() -> Iterator[None]:
    """A umask that leaves new files to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_only_its_owner_reads_the_file_and_those_beside_it(tmp_path: Path) -> None:
    engine = build_engine(f"sqlite:///{tmp_path / 'new' / 'c.db'}")
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    # While it is open there are the write-ahead log and its index.
    assert modes(tmp_path / "new") == {"c.db": "0o600", "c.db-wal": "0o600", "c.db-shm": "0o600"}
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    engine.dispose()


@pytest.mark.usefixtures("open_umask")
def test_a_file_of_an_earlier_release_is_closed_to_others_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = sqlite3.connect(tmp_path / "c.db")
    before.execute("PRAGMA journal_mode=WAL")
    before.execute("CREATE TABLE t (x)")
    assert set(modes(tmp_path).values()) == {"0o644"}
    engine = build_engine(f"sqlite:///{tmp_path / 'c.db'}")
    with reading(engine):
        assert modes(tmp_path) == {"c.db": "0o600", "c.db-wal": "0o600", "c.db-shm": "0o600"}
    engine.dispose()
    assert tmp_path.stat().st_mode & 0o777 == 0o755, "a folder that was there before is its owner's affair"
    before.close()


def test_an_engine_that_is_not_used_makes_no_file(tmp_path: Path) -> None:
    build_engine(f"sqlite:///{tmp_path / 'c.db'}").dispose()
    assert list(tmp_path.iterdir()) == []


def test_a_second_engine_leaves_the_locks_of_the_first_alone(tmp_path: Path) -> None:
    """To open and close the file here would end this process's locks, and the next process that closes it would take itself for the
    last one and delete the write-ahead log from under us."""
    engine, second = (build_engine(f"sqlite:///{tmp_path / 'c.db'}") for _ in range(2))
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    with reading(engine) as reader, reading(second):
        assert reader.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0
        script = f"import sqlite3; sqlite3.connect({str(tmp_path / 'c.db')!r}).execute('SELECT * FROM t').close()"
        subprocess.run([sys.executable, "-c", script], check=True)
        assert (tmp_path / "c.db-wal").stat().st_size > 0
    engine.dispose()
    second.dispose()


def test_a_file_that_cannot_be_made_is_reported_when_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "c.db").mkdir()
    engine = build_engine(f"sqlite:///{tmp_path / 'c.db'}")
    with pytest.raises(OperationalError, match="unable to open"), writing(engine):
        pass


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_database_in_memory_is_refused_and_makes_no_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="names no file"):
        build_engine(url)
    assert list(tmp_path.iterdir()) == []
