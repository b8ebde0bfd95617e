"""A database that is away, frozen, full or of another release: told apart, and nobody waits for it for long."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from app.errors import DatabaseAwayError, DatabaseFullError, SchemaNotCurrentError
from app.service.db.engine import build_engine, reading, writing
from app.service.db.migrate import VERSION_TABLE, upgrade
from app.service.db.troubles import Readiness, trouble_of
from app.settings import Settings


def raised(step: Callable[[], Any]) -> SQLAlchemyError:
    with pytest.raises(SQLAlchemyError) as caught:
        step()
    return caught.value


def asked(engine: Engine, statement: str = "SELECT 1") -> Any:
    with reading(engine) as connection:
        return connection.execute(text(statement)).scalar_one()


class TestReadiness:
    def test_a_database_of_this_release_with_room_is_ready(self, engine: Engine) -> None:
        Readiness(engine).require()

    def test_no_schema_and_that_of_another_release_are_told(self, engine: Engine) -> None:
        with writing(engine) as connection:
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
        with pytest.raises(SchemaNotCurrentError, match="not current"):
            Readiness(engine).require()
        with writing(engine) as connection:
            connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
        with pytest.raises(SchemaNotCurrentError, match="not current"):
            Readiness(engine).require()

    def test_a_missing_table_is_a_matter_of_the_schema(self, engine: Engine) -> None:
        no_table = raised(lambda: asked(engine, "SELECT * FROM missing"))
        no_column = raised(lambda: asked(engine, "SELECT missing FROM plans"))
        assert isinstance(trouble_of(no_table), SchemaNotCurrentError)
        assert isinstance(trouble_of(no_column), SchemaNotCurrentError)

    def test_a_faulty_statement_is_no_trouble_of_the_database(self, engine: Engine) -> None:
        assert trouble_of(raised(lambda: asked(engine, "SELECT FROM FROM plans"))) is None

    def test_the_database_is_asked_at_most_once_a_second(self, engine: Engine) -> None:
        now = 100.0
        readiness = Readiness(engine, clock=lambda: now)
        readiness.require()
        with writing(engine) as connection:
            connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
        now = 100.9
        readiness.require()
        now = 101.0
        with pytest.raises(SchemaNotCurrentError):
            readiness.require()


class TestSqlite:
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        return build_engine(f"sqlite:///{tmp_path / 'a.db'}")

    def test_a_file_that_cannot_grow_is_full(self, engine: Engine) -> None:
        def fill() -> None:
            with writing(engine) as connection:
                connection.execute(text("PRAGMA max_page_count = 20"))
                connection.execute(text("CREATE TABLE t AS SELECT zeroblob(1000000)"))

        assert isinstance(trouble_of(raised(fill)), DatabaseFullError)
        engine.dispose()

    def test_a_disk_with_less_room_than_is_to_be_spared_is_full(self, engine: Engine) -> None:
        upgrade(engine)
        with pytest.raises(DatabaseFullError, match="MiB left"):
            Readiness(engine, spare_bytes=1 << 62).require()
        engine.dispose()

    def test_a_folder_in_place_of_the_file_is_away(self, tmp_path: Path) -> None:
        engine = build_engine(f"sqlite:///{tmp_path}")
        with pytest.raises(DatabaseAwayError):
            Readiness(engine).require()


class TestPostgresql:
    """Silence, with a bound of one second."""

    @pytest.fixture
    def hasty(self, postgres_url: str) -> Engine:
        return build_engine(Settings(database_url=postgres_url).url, silence_s=1.0)

    def test_a_slow_statement_is_stopped_by_the_server(self, hasty: Engine) -> None:
        begun_at = time.monotonic()
        error = raised(lambda: asked(hasty, "SELECT pg_sleep(60)"))
        assert "statement timeout" in str(error)
        assert isinstance(trouble_of(error), DatabaseAwayError)
        assert time.monotonic() - begun_at < 20
        hasty.dispose()

    def test_a_frozen_server_is_given_up(self, hasty: Engine) -> None:
        """The statement that it is asked fails after a second; the next one gets a connection of its own."""
        pid = asked(hasty, "SELECT pg_backend_pid()")
        if not Path(f"/proc/{pid}/comm").exists() or Path(f"/proc/{pid}/comm").read_text() != "postgres\n":
            pytest.skip("the server does not run on this machine")
        with reading(hasty) as connection:
            own = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            os.kill(own, signal.SIGSTOP)
            try:
                begun_at = time.monotonic()
                with pytest.raises(OperationalError, match="said nothing for 1 s") as caught:
                    connection.execute(text("SELECT 1"))
                took_s = time.monotonic() - begun_at
            finally:
                os.kill(own, signal.SIGCONT)
        assert 0.9 < took_s < 20
        assert caught.value.connection_invalidated
        assert asked(hasty) == 1
        hasty.dispose()

    def test_while_one_caller_tries_to_connect_the_others_are_told_at_once(self, postgres_url: str) -> None:
        """A server that takes connections and says nothing, as a frozen one does."""
        pytest.importorskip("psycopg")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            engine = build_engine(
                f"postgresql+psycopg://nobody@127.0.0.1:{port}/nothing?sslmode=disable", silence_s=1.0
            )
            times = list[float]()

            def ask() -> None:
                begun_at = time.monotonic()
                raised(lambda: asked(engine))
                times.append(time.monotonic() - begun_at)

            ask()
            threads = [threading.Thread(target=ask) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            silent.setblocking(False)
            tried = 0
            with suppress(BlockingIOError):
                while True:
                    silent.accept()[0].close()
                    tried += 1
        assert tried == 2, "the first caller, and one of the five that came together"
        *quick, slow = sorted(times[1:])
        assert slow > 2.0
        assert max(quick) < slow
