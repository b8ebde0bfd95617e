"""Leases follow the database's clock: a process whose own clock is an hour off neither takes jobs from others nor loses its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.service.db.jobs import JobStore
from app.service.db.plans import PlanStore, Submission

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
ACT = """
import sys
from app.service.db.engine import build_engine
from app.service.db.jobs import JobStore
engine = build_engine(sys.argv[1])
store = JobStore(engine, lease_s=30.0)
print(len(store.lapsed()), store.claim("shifted") is not None)
"""


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_shifted_clock_changes_no_lease(engine: Engine, database_url: str, offset: str) -> None:
    """Only PostgreSQL is shared by machines; SQLite's users share one machine and its clock."""
    if not LIBRARIES:
        pytest.skip("libfaketime is not installed")
    plans, store = PlanStore(engine, max_queued_jobs=10), JobStore(engine, lease_s=30.0)
    for number in range(2):
        plans.submit("a", Submission(f"d{number}", "{}", 60.0))
    assert store.claim("here") is not None
    environment = {**os.environ, "LD_PRELOAD": str(LIBRARIES[0]), "FAKETIME": offset, "DONT_FAKE_MONOTONIC": "1"}
    command = [sys.executable, "-c", ACT, database_url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["0", "True"], done.stderr
    assert store.lapsed() == {}
