"""What a deployment can choose, read from `MESHWRIGHT_…` environment variables or given by the command line.

The defaults are the embedded service: loopback, SQLite in the user's data folder, worker processes of this machine.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def default_data_dir() -> Path:
    """The user's data folder (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "meshwright"


def is_loopback(host: str) -> bool:
    """Whether this address or name can only be reached from the same machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Settings(BaseSettings):
    """Settings of one service process; names and meanings stay stable, each is also an environment variable."""

    model_config = SettingsConfigDict(env_prefix="MESHWRIGHT_", frozen=True)

    host: str = "127.0.0.1"
    """Address to listen on. Open without keys on loopback only."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    data_dir: Path = Field(default_factory=default_data_dir)
    """Where the default SQLite file lives."""
    database_url: str | None = None
    """SQLAlchemy URL, such as postgresql://user@host/name; default: SQLite in data_dir."""
    auto_upgrade: bool | None = None
    """Whether starting brings the database to the newest schema. Default: for SQLite only."""
    pool_size: Annotated[int, Field(ge=1, le=256)] = Field(default_factory=lambda: min(4, os.cpu_count() or 1))
    """Worker processes."""
    job_time_limit_s: Annotated[float, Field(gt=0)] = 600.0
    """A job that runs longer is stopped, whatever it asked for."""
    cancel_grace_s: Annotated[float, Field(ge=0)] = 0.25
    """How long a cancelled job may take to stop by itself before its worker is ended."""
    lease_s: Annotated[float, Field(gt=0)] = 10.0
    """A running job whose process has not been heard of for this long is queued again."""
    max_queued_jobs: Annotated[int, Field(ge=1)] = 100
    """Unfinished jobs of one tenant; more are answered 429."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 1 << 20
    max_json_depth: Annotated[int, Field(ge=8)] = 64
    seed_examples: bool = True
    """Whether the example objects of the API documentation are stored for every tenant."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def url(self) -> str:
        """The database URL in use, with the driver named."""
        url = self.database_url or f"sqlite:///{self.data_dir / 'meshwright.db'}"
        scheme, _, rest = url.partition("://")
        return f"postgresql+psycopg://{rest}" if scheme in {"postgresql", "postgres"} else url

    @property
    def is_open(self) -> bool:
        """Whether requests need no key: only while nothing but this machine can connect."""
        return is_loopback(self.host)

    @property
    def upgrades_itself(self) -> bool:
        if self.auto_upgrade is not None:
            return self.auto_upgrade
        return self.url.startswith("sqlite")
