"""What a deployment can choose: settings from `MESHWRIGHT_…` environment variables or from the command line.

The defaults describe the embedded service: it listens on loopback, keeps SQLite in the user's data folder and runs its worker
processes on this machine.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


def default_data_dir() -> Path:
    """The user's data folder (XDG base directory specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "meshwright"


def _rate(text: str | None) -> str | None:
    if text is not None:
        from limits import parse

        parse(text)
    return text


Rate = Annotated[str | None, AfterValidator(_rate)]
"""A number in a time as the library `limits` writes it, such as `60/minute`."""

# Longer ones leave the calendar, or what the database can count in milliseconds.
_MOST_S, _MOST_HOURS, _MOST_DAYS = 604_800.0, 876_000.0, 36_500.0
"""A week, and a hundred years."""
Days = Annotated[float, Field(gt=0, le=_MOST_DAYS)]


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
    """Address to listen on. Only a loopback address works without keys."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 takes any that is free."""
    data_dir: Path = Field(default_factory=default_data_dir)
    """Folder of the default SQLite file. By default `$XDG_DATA_HOME/meshwright`, or `~/.local/share/meshwright`."""
    database_url: str | None = None
    """SQLAlchemy URL, such as postgresql://user@host/name. The default is a SQLite file in data_dir."""
    # A SQLite file has one user, who expects the program to just start. A PostgreSQL database may serve other processes of
    # an older release, and its schema is for an administrator to change (`meshwright db upgrade`).
    auto_upgrade: bool | None = None
    """Whether the service brings the database to the newest schema when it starts. By default it does so for SQLite only."""
    # A search keeps one core busy for seconds at most, so four workers serve a team, and a laptop does not fill its memory with
    # idle ones.
    pool_size: Annotated[int, Field(ge=0, le=256)] = Field(default_factory=lambda: min(4, os.cpu_count() or 1))
    """Worker processes that run jobs; 0 where `meshwright worker` runs them. By default one for each core, at most four."""
    job_time_limit_s: Annotated[float, Field(gt=0, le=_MOST_S)] = 600.0
    """Seconds after which a job is stopped, whatever its request asked for."""
    # The search looks at its stop flag between chunks, which mostly take less than 0.1 s. Ending the process instead costs a second
    # of loading for the worker that replaces it.
    cancel_grace_s: Annotated[float, Field(ge=0, le=_MOST_S)] = 0.25
    """Seconds that a cancelled job may take to stop by itself before its worker process is ended."""
    # The owner renews a lease once a third of it has passed (`JobStore.renew`), and a writer waits up to 10 s for SQLite's lock.
    # A shorter lease would start a job twice because the database was busy; a longer one would only delay the retry of a job
    # whose machine died.
    lease_s: Annotated[float, Field(gt=0, le=_MOST_S)] = 10.0
    """Seconds without a sign of life from a job's process after which the job is queued again."""
    # An agent is heard of every sixth part of it. A service that is restarted is away for seconds, a node that swaps for longer.
    agent_lease_s: Annotated[float, Field(ge=1, le=_MOST_S)] = 60.0
    """Seconds without a heartbeat after which a GPU node's measurement may be given to another agent."""
    max_running_jobs: Annotated[int | None, Field(ge=1)] = None
    """Jobs of one tenant that may run at a time. By default a tenant may use all workers but one, or all of them on a loopback address, where there are no tenants."""
    database_silence_s: Annotated[float, Field(ge=1, le=_MOST_S)] = 5.0
    """Seconds for which PostgreSQL may say nothing before a request is answered with 503; a statement may take four fifths of them."""
    max_queued_jobs: Annotated[int, Field(ge=1)] = 100
    """Unfinished jobs that one tenant may have; a further one is answered with 429."""
    max_plans: Annotated[int | None, Field(ge=1)] = 100_000
    """Plans that one tenant may have, finished ones included; a further one is answered with 429."""
    # A row of some 500 bytes. A fleet of thirty nodes that are each measured every day fills it within a year.
    max_profiling_jobs: Annotated[int | None, Field(ge=1)] = 10_000
    """Profiling jobs that one tenant may have, ended ones included; a further one is answered with 429."""
    # With its trials one takes some 50 KB.
    max_tunings: Annotated[int | None, Field(ge=1)] = 10_000
    """Tunings that one tenant may have, ended ones included; a further one is answered with 429."""
    # Eight GPUs for half a day. The GPUs are the tenant's own; this bounds what a mistyped request can take of them.
    max_tuning_gpu_hours: Annotated[float, Field(gt=0, le=1e6)] = 100.0
    """GPU hours that the trials of one tuning may take together; a request for more is refused."""
    max_tenant_gpu_hours: Annotated[float | None, Field(gt=0, le=1e9)] = None
    """GPU hours that the trials of all tunings of one tenant may take within 30 days, deleted ones included. Then no trial begins, what runs ends its tuning, and a further tuning is answered with 429. By default any number."""
    # A document of some 2 KB, compressed to half of it.
    max_observations: Annotated[int | None, Field(ge=1)] = 10_000
    """Observations that one tenant may have; a further one is answered with 429."""
    max_stored_bytes: Annotated[int | None, Field(ge=1)] = 2 << 30
    """Bytes that the plans, calibrations, tunings and observations of one tenant may take, compressed; a further one is answered with 429."""
    request_rate: Rate = None
    """Requests of one key, such as `6000/minute`; more are answered with 429. Each service process counts its own. By default any number."""
    upload_rate: Rate = None
    """Calibrations and observations that one key may upload, in the same notation. By default `60/minute`, and any number on a loopback address."""
    keep_plans_days: Days | None = None
    """Days after which a finished plan is deleted. By default plans are kept."""
    keep_calibrations_days: Days | None = None
    """Days after which a calibration is deleted. By default calibrations are kept."""
    keep_profiling_jobs_days: Days | None = None
    """Days after which a profiling job that has ended is deleted; its calibration stays. By default they are kept."""
    keep_tunings_days: Days | None = None
    """Days after which a tuning that has ended is deleted, with its trials; predictions are then no longer corrected by these. By default they are kept."""
    keep_observations_days: Days | None = None
    """Days after which an observation is deleted; predictions are then no longer corrected by it. By default they are kept."""
    keep_stored_bytes: Annotated[int | None, Field(ge=1)] = None
    """Bytes of one tenant's plans and calibrations above which its oldest finished plans are deleted. By default none are."""
    keep_audit_days: Days | None = 365.0
    """Days for which an entry of the audit log is kept."""
    # A client repeats a request whose answer it lost within minutes. A day is what public interfaces promise.
    keep_idempotency_keys_h: Annotated[float, Field(gt=0, le=_MOST_HOURS)] = 24.0
    """Hours for which an `Idempotency-Key` stands for the plan that it made."""
    sweep_every_s: Annotated[float, Field(ge=1, le=_MOST_S)] = 600.0
    """Seconds between two looks for what is to be deleted."""
    # A plan of ten strategies has some 60 KB, so this holds a thousand of them.
    kept_bytes: Annotated[int, Field(ge=0)] = 64 << 20
    """Memory, in bytes, for finished plans that are sent again without asking the database."""
    # A head is a few hundred bytes. What takes longer is no network, but somebody who wants to keep a connection for nothing.
    header_timeout_s: Annotated[float, Field(gt=0, le=_MOST_S)] = 10.0
    """Seconds in which a connection's first request, or the rest of a later one's head, must have arrived."""
    # A body of the largest size takes this long at 35 KB/s.
    body_timeout_s: Annotated[float, Field(gt=0, le=_MOST_S)] = 30.0
    """Seconds in which a request's body must have arrived, and after which a client that takes nothing of its answer is disconnected."""
    # Longer than proxies keep a connection that they do not use, so that it is mostly they who close it.
    idle_timeout_s: Annotated[float, Field(gt=0, le=_MOST_S)] = 75.0
    """Seconds that a connection may wait for its next request."""
    max_connections: Annotated[int, Field(ge=8)] = 1000
    """Connections at a time, and at most half of the files that the process may have open (`ulimit -n`). One more ends the connection that has waited longest for its client."""
    max_connections_per_client: Annotated[int, Field(ge=1)] = 250
    """Connections of one address (of one /64 network of IPv6) at a time. Behind a proxy, which is the only client, set it as high as `MESHWRIGHT_MAX_CONNECTIONS`."""
    # Two at least, so that one tenant's long list leaves one for the others. They share the loaded program's memory.
    answering_processes: Annotated[int, Field(ge=1, le=64)] = Field(
        default_factory=lambda: max(2, min(4, os.cpu_count() or 1))
    )
    """Processes that compute what a client waits for and nothing stores: evaluations, judgements, launch files, pages. By default as many as the machine has cores, from two to four."""
    # The largest body that is accepted holds 4,200 rows, which take 40 s on a core of their own when each is of another job.
    answer_time_limit_s: Annotated[float, Field(gt=0, le=_MOST_S)] = 300.0
    """Seconds that such an answer may take, its client's reading included."""
    # Those rows take 160 MiB, the program included.
    answer_memory_mib: Annotated[int, Field(ge=256)] = 2048
    """Memory that one of these processes may take, in MiB."""
    max_waiting_answers: Annotated[int, Field(ge=1)] = 32
    """Such requests of one tenant that may wait for their turn; a further one is answered with 429."""
    # A request is a few KB. The largest body is a calibration: that of a node with four GPUs has 165 KB, one of several nodes a
    # few times as much.
    max_body_bytes: Annotated[int, Field(ge=1024)] = 1 << 20
    """Bytes that the body of a request may have; a larger one is answered with 413."""
    # No document of the contract is nested more than a dozen levels deep. The bound keeps every later walk over
    # a document clear of Python's recursion limit.
    max_json_depth: Annotated[int, Field(ge=8)] = 64
    """Levels to which a JSON document may be nested; a deeper one is refused."""
    # Revoking a key has to take effect while somebody watches; asking the database for every request would cost each of them a query.
    key_memory_s: Annotated[float, Field(ge=0, le=60)] = 5.0
    """Seconds for which a valid key is not looked up again. A key revoked by another process opens this one for as long, and its streams for a second more."""
    seed_examples: bool = True
    """Whether the example objects of the API documentation are stored for every tenant."""
    traces: bool = False
    """Whether spans of requests, jobs and the database are sent by OpenTelemetry (extra `otel`); `OTEL_…` variables say where to."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of what is logged on stderr, one JSON object a line."""

    @property
    def url(self) -> str:
        """The database URL in use, with the driver named."""
        url = self.database_url or f"sqlite:///{self.data_dir / 'meshwright.db'}"
        scheme, _, rest = url.partition("://")
        return f"postgresql+psycopg://{rest}" if scheme in {"postgresql", "postgres"} else url

    @property
    def is_open(self) -> bool:
        """Whether requests need no key, which is so only while nothing but this machine can connect."""
        return is_loopback(self.host)

    @property
    def most_uploads(self) -> str | None:
        """Calibrations that one key may upload; None for any number."""
        return self.upload_rate or (None if self.is_open else "60/minute")

    @property
    def upgrades_itself(self) -> bool:
        """Whether the schema is upgraded when the service starts."""
        if self.auto_upgrade is not None:
            return self.auto_upgrade
        return self.url.startswith("sqlite")
