"""Databases that earlier releases left behind, with data, jobs in the queue and a job that was running, opened by this one.

`scripts/old_database.py` made the files under tests/golden/storage with the code of those releases; a folder is named after its schema.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text

from app.service.db.backup import back_up, restore
from app.service.db.engine import build_engine, reading, writing
from app.service.db.migrate import VERSION_TABLE, is_current, revision_of, upgrade
from app.service.db.tables import metadata
from app.service.main import create_app
from app.settings import Settings

STORAGE = Path(__file__).resolve().parent.parent / "golden" / "storage"
REVISIONS = sorted(folder.name for folder in STORAGE.iterdir())
DONE_S = 60.0


@pytest.fixture(params=REVISIONS)
def old(request: pytest.FixtureRequest, database_url: str) -> Iterator[tuple[Engine, dict[str, Any]]]:
    """A database as that release left it, and what it answered."""
    kind = database_url.partition(":")[0].partition("+")[0]
    statements = (STORAGE / request.param / f"{kind}.sql").read_text(encoding="utf-8")
    if kind == "sqlite":
        with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(statements)
    engine = build_engine(database_url)
    if kind == "postgresql":
        with writing(engine) as connection:
            # Straight to the driver, for which a statement without parameters may hold any number of statements and any colon.
            connection.connection.cursor().execute(statements)
            # pg_dump's own first lines empty the path on which tables are looked for.
            connection.execute(text("SET search_path TO DEFAULT"))
    with reading(engine) as connection:
        assert revision_of(connection) == request.param
    yield engine, json.loads((STORAGE / request.param / f"{kind}.json").read_text(encoding="utf-8"))
    engine.dispose()


def holds(new: Any, old: Any) -> bool:
    """Whether an answer says all that the old one said; it may say more."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and holds(new[key], old[key]) for key in old)
    if isinstance(old, list):
        return len(new) == len(old) and all(map(holds, new, old))
    return bool(new == old)


def test_the_upgraded_schema_is_that_of_a_new_database(old: tuple[Engine, dict[str, Any]]) -> None:
    engine, _ = old
    upgrade(engine)
    with reading(engine) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_the_service_answers_as_before_and_goes_on_with_the_queue(
    old: tuple[Engine, dict[str, Any]], database_url: str
) -> None:
    engine, told = old
    assert not is_current(engine)
    # The databases grow older than a day or a year, after which keys and the log of changes would be no longer told of.
    settings = Settings(
        database_url=database_url, auto_upgrade=True, host="0.0.0.0", pool_size=1, log_level="error",
        seed_examples=False, lease_s=0.5, keep_idempotency_keys_h=876_000.0, keep_audit_days=None,
    )  # fmt: skip
    with TestClient(create_app(settings)) as client:
        keys = {tenant: {"Authorization": f"Bearer {key}"} for tenant, key in told["keys"].items()}
        for tenant, answers in told["answers"].items():
            for path, answer in answers.items():
                assert holds(client.get(path, headers=keys[tenant]).json(), answer), path
                assert client.get(path, headers={"Authorization": f"Bearer {told['revoked_key']}"}).status_code == 401
        # The blue tenant's plans are not the red one's, and a repeated post is still recognised.
        blue_plan = next(iter(told["answers"]["blue"]))
        assert client.get(blue_plan, headers=keys["red"]).status_code == 404
        again = client.post("/v1/plans", json=told["request"], headers={**keys["blue"], "Idempotency-Key": "again"})
        assert again.json()["id"] == blue_plan.rpartition("/")[2]
        end_at = time.monotonic() + DONE_S
        for plan_id in told["unfinished"]:
            while (plan := client.get(f"/v1/plans/{plan_id}", headers=keys["blue"]).json())["status"] != "succeeded":
                assert plan["status"] in {"queued", "running"}, plan
                assert time.monotonic() < end_at
                time.sleep(0.05)
            assert plan["plans"], plan_id


def test_a_backup_of_the_old_schema_is_restored_by_this_release(
    old: tuple[Engine, dict[str, Any]], tmp_path: Path
) -> None:
    engine, told = old
    contents = back_up(engine, tmp_path / "old.db")
    fresh = build_engine(f"sqlite:///{tmp_path / 'fresh.db'}")
    assert restore(fresh, tmp_path / "old.db").rows["jobs"] == contents.rows["jobs"] == 3 + len(told["unfinished"])
    assert is_current(fresh)
    fresh.dispose()
