"""Settings: from the environment, with defaults for the embedded service."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from app.settings import Settings


def test_the_default_database_lies_in_the_data_folder(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.url == f"sqlite:///{tmp_path}/meshwright.db"
    assert settings.upgrades_itself


def test_the_data_folder_follows_the_desktop_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert Settings().data_dir == Path("/somewhere/meshwright")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgresql_is_spoken_with_psycopg_3_and_upgraded_on_demand_only(scheme: str) -> None:
    settings = Settings(database_url=f"{scheme}://user@host/name")
    assert settings.url == "postgresql+psycopg://user@host/name"
    assert not settings.upgrades_itself
    assert Settings(database_url=f"{scheme}://user@host/name", auto_upgrade=True).upgrades_itself


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWRIGHT_PORT", "9000")
    monkeypatch.setenv("MESHWRIGHT_POOL_SIZE", "3")
    monkeypatch.setenv("MESHWRIGHT_REQUIRE", "all")
    settings = Settings()
    assert (settings.port, settings.pool_size) == (9000, 3)


@pytest.mark.parametrize(("name", "value"), [("port", 70000), ("pool_size", 0), ("log_level", "loud"), ("lease_s", 0)])
def test_nonsense_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Settings(**{name: value})
