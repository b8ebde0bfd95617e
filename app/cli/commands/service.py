"""`meshwright serve`, `db` and `keys`: the service, its storage and its keys. Nothing is loaded before a command runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.completion import choices
from app.cli.output import require_name
from app.errors import UnavailableError
from app.quantities import duration_h
from app.scopes import SCOPES, USUAL_SCOPES, scopes_named
from cost_models.errors import InvalidInputError, Problem

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from app.service.db.backup import Contents
    from app.settings import Settings

db_app = typer.Typer(name="db", help="Manage the service's storage.", no_args_is_help=True)
keys_app = typer.Typer(name="keys", help="Manage who may use the service.", no_args_is_help=True)
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="Database, such as postgresql://user@host/name; MESHWRIGHT_DATABASE_URL says it, too.",
        show_default="a file of SQLite",
    ),
]
SharedDatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="PostgreSQL database of the services, such as postgresql://user@host/name.",
        show_default="MESHWRIGHT_DATABASE_URL",
    ),
]

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Worker processes that run jobs; 0 where `meshwright worker` runs them.",
        show_default="one per core, at most 4",
        min=0,
        max=256,
    ),
]
WorkersHere = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Jobs that run here at a time, each in a process of its own.",
        show_default="one per core, at most 4",
        min=0,
        max=256,
    ),
]


def serve(
    context: typer.Context,
    *,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on; beyond loopback, requests need keys.",
            show_default="127.0.0.1",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Port to listen on.", show_default="8000", min=0, max=65535),
    ] = None,
    db: DatabaseUrl = None,
    workers: Workers = None,
) -> None:
    """Serve the HTTP interface; its documentation is at /docs."""
    level = context.obj["log_level"]
    settings = _settings(host=host, port=port, database_url=db, pool_size=workers, log_level=level)
    from app.service.main import serve as run_service

    address = f"[{settings.host}]" if ":" in settings.host else settings.host
    if not context.obj["quiet"]:
        typer.echo(f"meshwright listens on http://{address}:{settings.port} (documentation at /docs)", err=True)
    try:
        run_service(settings)
    except SystemExit as ended:
        # uvicorn logs why it could not listen and exits; only the exit code says so here.
        if not ended.code:
            raise
        message = f"the service could not start, or could not listen on {address}:{settings.port}; see the log above"
        raise InvalidInputError([Problem("", message, "If the port is taken, choose another with --port.")]) from ended


def worker(context: typer.Context, *, db: SharedDatabaseUrl = None, workers: WorkersHere = None) -> None:
    """Run jobs for the services on a PostgreSQL database, from any machine."""
    settings = _settings(database_url=db, pool_size=workers, log_level=context.obj["log_level"])
    from app.service.workers_apart import run_workers

    run_workers(settings)


@db_app.command()
def upgrade(*, db: DatabaseUrl = None) -> None:
    """Bring the database to the newest schema, and print which that is."""
    from app.service.db.migrate import upgrade as upgrade_database

    with _engine(db) as engine:
        typer.echo(upgrade_database(engine))


@db_app.command()
def sweep(*, db: DatabaseUrl = None) -> None:
    """Delete what the settings keep no longer: old plans, calibrations, profiling jobs, tunings, observations and idempotency keys. The service does so by itself."""
    from app.service.sweeper import retention_of, sweep_all

    settings = _settings(database_url=db)
    with _engine(db) as engine:
        swept = sweep_all(engine, retention_of(settings))
    typer.echo(
        f"deleted: plans {swept.plans:,}, calibrations {swept.calibrations:,}, "
        f"profiling jobs {swept.profiling_jobs:,}, tunings {swept.tunings:,}, observations {swept.observations:,}, idempotency keys {swept.idempotency_keys:,}, audit entries {swept.audit_entries:,}"
    )


@db_app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; it must not exist.")],
    *,
    db: DatabaseUrl = None,
) -> None:
    """Write everything that the database holds to one file, while the service goes on."""
    require_name(file, option="FILE", example="meshwright-backup.db")
    from app.service.db.backup import back_up

    # A backup is what one makes before an upgrade.
    with _engine(db, upgrades=False, makes_file=False) as engine:
        _tell_contents(file, back_up(engine, file))


@db_app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `meshwright db backup` wrote, from either database.")],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Delete first what the database holds.")] = False,
    db: DatabaseUrl = None,
) -> None:
    """Fill the database from a backup, and bring it to the newest schema."""
    from app.service.db.backup import restore as restore_backup

    with _engine(db, upgrades=False) as engine:
        _tell_contents(file, restore_backup(engine, file, replace=replace))


def _tell_contents(file: Path, contents: Contents) -> None:
    rows = ", ".join(f"{table} {count:,}" for table, count in contents.rows.items() if count)
    typer.echo(f"{file}: schema {contents.revision}; rows: {rows or 'none'}")


@keys_app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    *,
    tenant: Annotated[str, typer.Option(help="Whose plans and calibrations the key reaches.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE",
            autocompletion=choices(SCOPES),
            help="What the key may do: read, plan, profile or admin, which manages keys. Repeat it for several.",
            show_default=", ".join(USUAL_SCOPES),
        ),
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="For how long it is valid: 12h or 90d.", show_default="until it is revoked"),
    ] = None,
    db: DatabaseUrl = None,
) -> None:
    """Create a key and print it; it cannot be shown again."""
    from app.service.db.keys import create_key

    scopes = scopes_named(scope or ())
    lasts_s = None if expires_in is None else 3600.0 * duration_h(expires_in, option="--expires-in")
    with _engine(db) as engine:
        key, secret = create_key(engine, tenant=tenant, name=name, scopes=scopes, expires_in_s=lasts_s)
    until = f", valid until {key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at else ""
    typer.echo(
        f"{key.id} for tenant {tenant} with {', '.join(key.scopes)}{until}. Keep the key below: it is not stored and cannot be "
        "shown again.",
        err=True,
    )
    # Alone on stdout, so that KEY=$(meshwright keys create ci) works.
    typer.echo(secret)


@keys_app.command("list")
def list_(*, db: DatabaseUrl = None) -> None:
    """List all keys, without their secrets."""
    from app.service.db.keys import list_keys

    with _engine(db, makes_file=False) as engine:
        for key in list_keys(engine):
            if key.revoked_at:
                state = f"revoked {key.revoked_at:%Y-%m-%d}"
            elif key.expires_at and key.expires_at <= datetime.now(UTC):
                state = f"expired {key.expires_at:%Y-%m-%d}"
            else:
                state = f"valid until {key.expires_at:%Y-%m-%d}" if key.expires_at else "valid"
            used = f"used {key.last_used_at:%Y-%m-%d}" if key.last_used_at else "never used"
            columns = (key.id, key.tenant, key.name, f"{key.created_at:%Y-%m-%d}", state, ",".join(key.scopes), used)
            typer.echo("\t".join(columns))


@keys_app.command()
def revoke(key_id: Annotated[str, typer.Argument(help="Id of the key.")], *, db: DatabaseUrl = None) -> None:
    """Revoke a key, which is refused from now on."""
    from app.service.db.keys import revoke_key

    with _engine(db, makes_file=False) as engine:
        revoke_key(engine, key_id)


def _settings(**given: Any) -> Settings:
    """Settings from the environment, overridden by the options of the command line."""
    from pydantic import ValidationError

    from app.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = [
            Problem(
                "", f"setting {'.'.join(map(str, entry['loc']))}: {entry['msg']}", f"Its value is {entry['input']!r}."
            )
            for entry in error.errors()
        ]
        raise InvalidInputError(problems) from error


@contextmanager
def _engine(url: str | None, *, upgrades: bool = True, makes_file: bool = True) -> Iterator[Engine]:
    """The database of the settings, upgraded where the settings say so. What it refuses is reported in one line.

    Whatever only looks for what is there makes no SQLite file: an empty answer would hide a misspelled path.
    """
    from sqlalchemy.exc import DatabaseError

    from app.service.db.audit import ACTOR, Actor
    from app.service.db.engine import build_engine
    from app.service.db.migrate import upgrade as upgrade_database

    settings = _settings(database_url=url)
    engine = build_engine(settings.url, makes_file=makes_file)
    acting = ACTOR.set(Actor("command line"))
    try:
        if upgrades and settings.upgrades_itself:
            upgrade_database(engine)
        yield engine
    except DatabaseError as error:
        hint = "Check that it is running, and run `meshwright db upgrade`."
        raise UnavailableError(f"the database refused: {error.orig or error}", hint=hint) from error
    finally:
        ACTOR.reset(acting)
        engine.dispose()
