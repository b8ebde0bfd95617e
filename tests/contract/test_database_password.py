"""A password of any characters, given to PostgreSQL apart from the URL, as docker/compose.yaml gives it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from app.service.db.engine import build_engine, reading, writing
from app.settings import Settings

PASSWORD = "p@s%s:w/o#r?d '\\&=é"


@pytest.fixture
def role(second_postgres_url: str) -> Iterator[str]:
    """A role of a PostgreSQL server that asks it for its password."""
    name = f"m{secrets.token_hex(4)}"
    engine = build_engine(Settings(database_url=second_postgres_url).url)
    with writing(engine) as connection:
        quoted = connection.execute(text("SELECT quote_literal(:p)"), {"p": PASSWORD}).scalar_one()
        connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD {quoted}".replace(":", "\\:")))
        rules = Path(connection.execute(text("SHOW hba_file")).scalar_one())
        before = rules.read_text()
        rules.write_text(f"local all {name} scram-sha-256\n{before}")
        _read_rules(connection)
    yield name
    rules.write_text(before)
    with writing(engine) as connection:
        _read_rules(connection)
        connection.execute(text(f"DROP ROLE {name}"))
    engine.dispose()


def _read_rules(connection: Connection) -> None:
    connection.execute(text("SELECT pg_reload_conf()"))


@pytest.mark.parametrize(("password", "is_let_in"), [(PASSWORD, True), (PASSWORD[:-1], False), (None, False)])
def test_a_password_of_any_characters_needs_no_place_in_the_url(
    second_postgres_url: str, role: str, monkeypatch: pytest.MonkeyPatch, password: str | None, is_let_in: bool
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    if password is not None:
        monkeypatch.setenv("PGPASSWORD", password)
    url = second_postgres_url.replace("//postgres@", f"//{role}@")
    assert role in url
    engine = build_engine(Settings(database_url=url).url)
    end_at = time.monotonic() + 60.0
    while True:  # the server reads its rules a moment after it was told to
        try:
            with reading(engine) as connection:
                seen = connection.execute(text("SELECT current_user")).scalar_one()
        except OperationalError as error:
            seen = str(error)
        if (seen == role) == is_let_in or time.monotonic() > end_at:
            break
        time.sleep(0.05)
        engine.dispose()
    engine.dispose()
    assert seen == role if is_let_in else "password" in seen
