"""The database connection: what it refuses, and how SQLite is made safe."""

from __future__ import annotations

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
