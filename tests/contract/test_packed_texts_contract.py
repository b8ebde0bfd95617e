"""Texts are compressed at rest, on every database; those of an older release are compressed when it is upgraded."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from app.errors import NotFoundError
from app.service.db.calibrations import CalibrationStore
from app.service.db.engine import build_engine, reading, writing
from app.service.db.jobs import JobStore
from app.service.db.migrate import upgrade
from app.service.db.plan_result import PlanResult
from app.service.db.plans import PlanStore, Submission, write_result

# U+2028 and U+0085 are line breaks to Python, and may stand in JSON as they are.
DOCUMENT = json.dumps({"gpu": "H100 \u2028 \u0085 é", "samples": list(range(2000))}, ensure_ascii=False)
RANKED = [
    json.dumps({"rank": rank, "stages": [{"layers": 9, "é": "\u2028"}] * 40}, ensure_ascii=False)
    for rank in range(1, 61)
]
REQUEST = json.dumps({"request": {"model": "m" * 3000}, "calibrations": {}})
TEXTS = {"jobs": "payload", "plans": "response", "ranked_plans": "document", "calibrations": "document"}


def at_rest(connection: Connection, table: str) -> list[bytes]:
    """What the database holds, as it holds it."""
    # Raw SQL: the tables of the program would unpack it.
    query = f"SELECT {TEXTS[table]} FROM {table} WHERE {TEXTS[table]} IS NOT NULL"
    return [value if isinstance(value, str) else bytes(value) for value in connection.execute(text(query)).scalars()]


def test_everything_long_is_compressed_and_read_back_as_it_was(engine: Engine) -> None:
    plans, jobs = PlanStore(engine, max_queued_jobs=5), JobStore(engine, lease_s=30.0)
    plan_id = plans.submit("a", Submission("d", REQUEST, 60.0)).id
    job = jobs.claim("me")
    assert job is not None
    assert job.payload == REQUEST
    result = PlanResult.of_texts(response=DOCUMENT, headline="{}", ranked=RANKED)
    jobs.finish(job, owner="me", status="succeeded", store=lambda connection: write_result(connection, job.key, result))
    calibrations = CalibrationStore(engine)
    calibrations.add("a", "c", document=DOCUMENT, gpu="H100", gpus_per_node=8)

    plan = plans.get("a", plan_id)
    assert (plan.request, plan.response) == (REQUEST, DOCUMENT)
    assert [plans.ranked("a", plan_id, rank) for rank in range(1, 61)] == RANKED
    assert plans.all_ranked("a", plan_id) == RANKED
    for missing in (0, 61, 1000):
        with pytest.raises(NotFoundError):
            plans.ranked("a", plan_id, missing)
    assert calibrations.document("a", "c") == DOCUMENT

    with reading(engine) as connection:
        held = {table: at_rest(connection, table) for table in TEXTS}
        taken = connection.execute(text("SELECT stored_bytes FROM plans")).scalar_one()
        taken_by_calibration = connection.execute(text("SELECT stored_bytes FROM calibrations")).scalar_one()
    assert zlib.decompress(held["plans"][0]).decode() == DOCUMENT
    # Sixty alike in three rows; each alone has 1,400 bytes.
    assert len(held["ranked_plans"]) == 3
    assert sum(map(len, held["ranked_plans"])) < len("".join(RANKED)) / 20
    plan_bytes = sum(len(value) for table in ("jobs", "plans", "ranked_plans") for value in held[table])
    assert taken == plan_bytes + len("{}")
    assert taken_by_calibration == len(held["calibrations"][0]) < len(DOCUMENT) / 2


def insert_row(connection: Connection, table: str, **values: Any) -> None:
    columns, names = ", ".join(values), ", ".join(f":{name}" for name in values)
    connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({names})"), values)


def test_an_upgrade_compresses_what_an_older_release_stored(database_url: str) -> None:
    engine = build_engine(database_url)
    upgrade(engine, "0004")
    at = "2026-01-01 00:00:00+00:00"
    with writing(engine) as connection:
        # More than the upgrade reads at a time.
        for number in range(101):
            key = {"tenant": "a", "id": f"p{number:03}", "created_at": at}
            insert_row(
                connection, "jobs", **key, kind="plan", status="succeeded", payload=REQUEST, attempts=1,
                time_limit_s=60.0, cancel_requested=False,
            )  # fmt: skip
            insert_row(connection, "plans", **key, request_digest="d", response=DOCUMENT if number == 100 else None)
        for rank, ranked in enumerate(RANKED * 4, start=1):
            insert_row(connection, "ranked_plans", tenant="a", plan_id="p100", rank=rank, document=ranked)
        insert_row(connection, "calibrations", tenant="a", id="c", created_at=at, gpu="H100", document=DOCUMENT)
    upgrade(engine)

    plans = PlanStore(engine, max_queued_jobs=5)
    plan = plans.get("a", "p100")
    assert (plan.request, plan.response) == (REQUEST, DOCUMENT)
    assert plans.get("a", "p000").response is None
    assert [plans.ranked("a", "p100", rank) for rank in (1, 60, 61, 240)] == [
        RANKED[0],
        RANKED[59],
        RANKED[0],
        RANKED[59],
    ]
    assert plans.all_ranked("a", "p100") == RANKED * 4
    assert CalibrationStore(engine).document("a", "c") == DOCUMENT
    with reading(engine) as connection:
        held = {table: at_rest(connection, table) for table in TEXTS}
        taken = {row.id: row.stored_bytes for row in connection.execute(text("SELECT id, stored_bytes FROM plans"))}
    for table, values in held.items():
        assert all(zlib.decompress(value) for value in values), table
    assert taken["p000"] == len(zlib.compress(REQUEST.encode()))
    assert taken["p100"] == taken["p000"] + len(zlib.compress(DOCUMENT.encode())) + sum(map(len, held["ranked_plans"]))
    engine.dispose()
