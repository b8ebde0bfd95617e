"""Settings: from the environment, with defaults for the embedded service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.settings import Settings, is_loopback
from scripts.http_reference import settings as table_of_settings


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


@pytest.mark.parametrize(
    ("name", "least", "below"),
    [
        ("port", 0, -1), ("pool_size", 0, -1), ("job_time_limit_s", 0.001, 0.0), ("cancel_grace_s", 0.0, -0.001),
        ("lease_s", 0.001, 0.0), ("max_queued_jobs", 1, 0), ("max_body_bytes", 1024, 1023), ("max_json_depth", 8, 7),
        ("header_timeout_s", 0.001, 0.0), ("body_timeout_s", 0.001, 0.0), ("idle_timeout_s", 0.001, 0.0),
        ("max_connections", 8, 7), ("max_connections_per_client", 1, 0),
    ],
)  # fmt: skip
def test_the_least_value_is_accepted_and_the_next_lower_one_is_not(name: str, least: float, below: float) -> None:
    assert getattr(Settings(**{name: least}), name) == least
    with pytest.raises(ValidationError):
        Settings(**{name: below})


@pytest.mark.parametrize(("name", "most"), [("port", 65535), ("pool_size", 256)])
def test_the_largest_value_is_accepted_and_the_next_higher_one_is_not(name: str, most: int) -> None:
    assert getattr(Settings(**{name: most}), name) == most
    with pytest.raises(ValidationError):
        Settings(**{name: most + 1})


def test_defaults_are_those_of_a_service_for_its_own_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes for a job, a hundred jobs a tenant, a body of one MiB nested 64 deep (contract: 413 over 1 MiB)."""
    settings = Settings()
    assert (settings.host, settings.port, settings.is_open) == ("127.0.0.1", 8000, True)
    assert (settings.job_time_limit_s, settings.max_queued_jobs) == (600.0, 100)
    assert (settings.max_body_bytes, settings.max_json_depth) == (2**20, 64)
    # A running job's owner renews its lease after a third; a writer may wait 10 s for SQLite's lock.
    assert settings.lease_s == 10.0
    assert settings.cancel_grace_s == 0.25
    assert (settings.header_timeout_s, settings.body_timeout_s, settings.idle_timeout_s) == (10.0, 30.0, 75.0)
    assert (settings.max_connections, settings.max_connections_per_client) == (1000, 250)
    for cores, workers in ((1, 1), (3, 3), (4, 4), (64, 4), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert Settings().pool_size == workers


def test_without_a_data_home_files_lie_in_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", "/somebody")
    assert Settings().data_dir == Path("/somebody/.local/share/meshwright")


@pytest.mark.parametrize(
    ("host", "is_open"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False),
     ("10.0.0.1", False), ("host", False), ("localhost.example", False)],
)  # fmt: skip
def test_only_this_machine_needs_no_key(host: str, is_open: bool) -> None:
    assert Settings(host=host).is_open == is_open
    assert is_loopback(host) == is_open


@pytest.mark.parametrize(
    ("url", "given", "upgrades"),
    [(None, None, True), (None, False, False), ("sqlite:///x.db", None, True), ("sqlite:///x.db", False, False),
     ("postgresql://h/n", None, False), ("postgresql://h/n", True, True), ("mysql://h/n", None, False)],
)  # fmt: skip
def test_a_file_is_upgraded_unless_told_otherwise_and_a_server_only_if_told(
    url: str | None, given: bool | None, upgrades: bool
) -> None:
    assert Settings(database_url=url, auto_upgrade=given).upgrades_itself == upgrades
    assert url is None or url.startswith("postgres") or Settings(database_url=url).url == url


@pytest.mark.parametrize(("name", "value"), [("port", 70000), ("pool_size", -1), ("log_level", "loud"), ("lease_s", 0)])
def test_nonsense_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        Settings(**{name: value})


def test_every_setting_is_explained_and_a_default_that_is_no_constant_told() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table_of_settings().splitlines()[2:]]
    assert len(rows) == len(Settings.model_fields)
    assert [name for name, _, meaning in rows if not meaning.endswith(".")] == []
    assert [name for name, default, meaning in rows if not default and "default" not in meaning] == []


TIMES = [name for name in Settings.model_fields if name.endswith(("_s", "_h", "_days"))]


@pytest.mark.parametrize("name", TIMES)
def test_no_time_is_longer_than_can_be_counted(name: str) -> None:
    for value in (1e300, float("inf"), float("nan")):
        with pytest.raises(ValidationError):
            Settings(**{name: value})
