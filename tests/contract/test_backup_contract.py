"""What a backup promises: everything of one moment, in one file, back into either database. Files are read with sqlite3 alone."""

from __future__ import annotations

import sqlite3
import stat
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, text

from app.errors import UnavailableError, WrongStateError
from app.service.db.backup import back_up, restore
from app.service.db.calibrations import CalibrationStore
from app.service.db.engine import build_engine, reading, writing
from app.service.db.jobs import JobKey, JobStore
from app.service.db.keys import create_key, find_key
from app.service.db.migrate import VERSION_TABLE, is_current, upgrade
from app.service.db.plan_result import PlanResult
from app.service.db.plans import PlanStore, Submission, write_result
from app.service.db.tables import jobs, metadata
from app.service.db.workers import WorkerStore
from cost_models.errors import InvalidInputError

# Characters that a codec, an escape or a text format in between would change.
DOCUMENT = '{"name":"naïve 日本 \\u0000 \'quoted\' \\\\n %s :x","n":0.1}'
RESULT = PlanResult(response=DOCUMENT, headline='{"num_plans":2}', ranked=('{"rank":1}', '{"rank":2}'))


def submitted(engine: Engine, tenant: str, digest: str) -> JobKey:
    asked = Submission(digest, '{"request":{}}', 60.0, idempotency_key=digest, body_sha256="b")
    return JobKey(tenant, PlanStore(engine, max_queued_jobs=1000).submit(tenant, asked).id)


def filled(engine: Engine) -> tuple[JobKey, str]:
    """A finished plan and a key, beside a calibration of another tenant."""
    key = submitted(engine, "a", "d1")
    store = JobStore(engine, lease_s=30.0)
    job = store.claim("me")
    assert job is not None
    store.finish(job, owner="me", status="succeeded", store=lambda connection: write_result(connection, key, RESULT))
    CalibrationStore(engine).add("b", "c1", document=DOCUMENT, gpu="H100", gpus_per_node=8)
    return key, create_key(engine, tenant="a", name="laptop")[1]


@pytest.fixture
def other(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    """Makes empty databases of the other kind than the test's own."""
    made = []

    def make() -> Engine:
        if database_url.startswith("sqlite"):
            url = request.getfixturevalue("second_postgres_url")
        else:
            url = f"sqlite:///{tmp_path / 'other.db'}"
        made.append(build_engine(url))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    """For what a file is refused for, whichever database it should go to."""
    engine = build_engine(f"sqlite:///{tmp_path / 'test.db'}")
    upgrade(engine)
    yield engine
    engine.dispose()


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as connection:
        yield connection


def rows_of(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table but that of running workers, in the order of its key."""
    with reading(engine) as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key.columns))]
            for table in metadata.sorted_tables
            if table.name != "workers"
        }


class TestBackup:
    def test_it_is_one_private_file_with_every_row(self, engine: Engine, tmp_path: Path) -> None:
        key, _ = filled(engine)
        file = tmp_path / "kept" / "backup ?%20.db"
        file.parent.mkdir()
        contents = back_up(engine, file)
        assert list(file.parent.iterdir()) == [file]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert {table: len(rows) for table, rows in rows_of(engine).items()} == contents.rows
        moved = file.rename(tmp_path / "moved.db")
        with opened(moved) as connection:
            ((tenant, plan_id, response),) = connection.execute("SELECT tenant, id, response FROM plans")
            assert (tenant, plan_id, zlib.decompress(response).decode()) == ("a", key.id, DOCUMENT)
            ((tenant, document),) = connection.execute("SELECT tenant, document FROM calibrations")
            assert (tenant, zlib.decompress(document).decode()) == ("b", DOCUMENT)
        # sqlite.org/fileformat2.html: these bytes are 2 where the file wants a write-ahead log beside it.
        assert moved.read_bytes()[18:20] == b"\x01\x01"

    def test_it_shows_one_moment_while_others_write(self, engine: Engine, tmp_path: Path) -> None:
        """A plan, its job and its first event are written together: a backup has all three or none of them."""
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                submitted(engine, "a", f"d{(number := number + 1)}")

        for number in range(100):
            submitted(engine, "b", f"d{number}")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            files = [tmp_path / f"{number}.db" for number in range(3)]
            for file in files:
                back_up(engine, file)
        finally:
            stop.set()
            writer.join()
        for file in files:
            with opened(file) as connection:
                counts = {
                    connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                    for table in ("jobs", "job_events", "plans", "idempotency_keys")
                }
                assert len(counts) == 1, file
                assert connection.execute("PRAGMA foreign_key_check").fetchall() == []

    def test_an_older_schema_is_kept_as_it_is(self, database_url: str, tmp_path: Path) -> None:
        """One makes a backup before an upgrade. Jobs had no priority at revision 0001."""
        engine = build_engine(database_url)
        upgrade(engine, "0001")
        assert back_up(engine, tmp_path / "old.db").revision == "0001"
        assert not is_current(engine)
        engine.dispose()
        with opened(tmp_path / "old.db") as connection:
            assert connection.execute(f"SELECT * FROM {VERSION_TABLE}").fetchall() == [("0001",)]
            assert "priority" not in {row[1] for row in connection.execute("PRAGMA table_info(jobs)")}

    def test_no_file_is_left_where_it_fails_and_none_is_overwritten(self, database_url: str, tmp_path: Path) -> None:
        empty = build_engine(database_url)
        folder = tmp_path / "kept"
        folder.mkdir()
        with pytest.raises(InvalidInputError, match="holds nothing of meshwright's"):
            back_up(empty, folder / "backup.db")
        assert list(folder.iterdir()) == []
        upgrade(empty)
        (folder / "backup.db").write_text("mine")
        with pytest.raises(InvalidInputError, match="already exists"):
            back_up(empty, folder / "backup.db")
        assert (folder / "backup.db").read_text() == "mine"
        with pytest.raises(InvalidInputError, match="No such file or directory"):
            back_up(empty, tmp_path / "nowhere" / "backup.db")
        with writing(empty) as connection:
            connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        with pytest.raises(UnavailableError, match="9999"):
            back_up(empty, folder / "newer.db")
        assert list(folder.iterdir()) == [folder / "backup.db"]
        empty.dispose()


class TestRestore:
    def test_everything_comes_back_in_either_kind_of_database(
        self, engine: Engine, other: Callable[[], Engine], tmp_path: Path
    ) -> None:
        if engine.dialect.name == "postgresql":
            # A server whose hours are not UTC's, as many are.
            with writing(engine) as connection:
                name = connection.execute(text("SELECT current_database()")).scalar()
                connection.execute(text(f"ALTER DATABASE {name} SET timezone TO 'Asia/Tokyo'"))
            engine.dispose()
        key, secret = filled(engine)
        before = rows_of(engine)
        back_up(engine, tmp_path / "backup.db")
        with writing(engine) as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())
        assert find_key(engine, secret) is None
        for target in (engine, other()):
            restore(target, tmp_path / "backup.db")
            assert rows_of(target) == before
            if target.dialect.name == "postgresql":
                # A table that numbered its rows itself would have to be told where to go on.
                with reading(target) as connection:
                    assert connection.exec_driver_sql("SELECT count(*) FROM pg_sequences").scalar() == 0
            found = find_key(target, secret)
            assert found is not None
            assert found[0].tenant == "a"
            assert PlanStore(target, max_queued_jobs=5).get("a", key.id).response == DOCUMENT
            # The storage is as good as any: the next rows go in.
            assert submitted(target, "a", "d2") != key
            filled_events = JobStore(target, lease_s=30.0).events_after(key, 0)
            assert [event.type for event in filled_events] == ["queued", "started", "succeeded"]

    def test_what_is_there_is_replaced_only_when_asked(self, engine: Engine, tmp_path: Path) -> None:
        filled(engine)
        back_up(engine, tmp_path / "backup.db")
        late = submitted(engine, "c", "d9")
        with pytest.raises(WrongStateError, match="not empty"):
            restore(engine, tmp_path / "backup.db")
        assert JobStore(engine, lease_s=30.0).status(late) == "queued"
        restore(engine, tmp_path / "backup.db", replace=True)
        assert JobStore(engine, lease_s=30.0).status(late) is None

    def test_a_job_that_was_running_is_queued_and_lost_no_attempt(self, engine: Engine, tmp_path: Path) -> None:
        key = submitted(engine, "a", "d1")
        JobStore(engine, lease_s=3600.0).claim("gone")
        back_up(engine, tmp_path / "backup.db")
        restore(engine, tmp_path / "backup.db", replace=True)
        with reading(engine) as connection:
            row = connection.execute(select(jobs)).one()
        assert (row.status, row.owner, row.lease_until, row.attempts) == ("queued", None, None, 0)
        claimed = JobStore(engine, lease_s=30.0).claim("next")
        assert claimed is not None
        assert claimed.key == key

    def test_workers_are_those_that_run_now(self, engine: Engine, tmp_path: Path) -> None:
        """A worker that waits for jobs does not fill a database, and none comes back out of a file."""
        workers = WorkerStore(engine, lease_s=3600.0)
        workers.report("before", size=3, ready=3)
        back_up(engine, tmp_path / "backup.db")
        workers.forget("before")
        workers.report("now", size=2, ready=2)
        restore(engine, tmp_path / "backup.db")
        assert workers.ready() == 2

    def test_an_older_backup_is_upgraded_and_the_file_stays(self, database_url: str, tmp_path: Path) -> None:
        engine, file = build_engine(database_url), tmp_path / "old.db"
        upgrade(engine, "0001")
        back_up(engine, file)
        before = file.read_bytes()
        restore(engine, file)
        assert is_current(engine)
        assert file.read_bytes() == before
        engine.dispose()

    def test_a_damaged_backup_changes_nothing(self, sqlite: Engine, tmp_path: Path) -> None:
        filled(sqlite)
        back_up(sqlite, tmp_path / "backup.db")
        with closing(sqlite3.connect(tmp_path / "backup.db")) as connection, connection:
            # Only a file that was changed by hand, or by a failing disk, has a plan without a job.
            connection.execute("UPDATE plans SET id = 'nobody'")
        before = rows_of(sqlite)
        with pytest.raises(InvalidInputError, match="damaged"):
            restore(sqlite, tmp_path / "backup.db", replace=True)
        assert rows_of(sqlite) == before

    def test_what_is_no_backup_is_refused(self, sqlite: Engine, tmp_path: Path) -> None:
        (tmp_path / "text.db").write_text("not a database, but long enough to have a header to look at " * 20)
        sqlite3.connect(tmp_path / "foreign.db").close()
        for name, said in (("none.db", "no file"), ("text.db", "not a database"), ("foreign.db", "no backup")):
            with pytest.raises(InvalidInputError, match=said):
                restore(sqlite, tmp_path / name)
        back_up(sqlite, tmp_path / "newer.db")
        with closing(sqlite3.connect(tmp_path / "newer.db")) as connection, connection:
            connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        with pytest.raises(UnavailableError, match="9999"):
            restore(sqlite, tmp_path / "newer.db")
