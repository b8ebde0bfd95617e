"""Who is asking, and whether they may. On loopback everybody who can connect is the tenant `local`; elsewhere a key says whose it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.exc import SQLAlchemyError

from app.errors import ForbiddenError, UnauthorizedError
from app.scopes import SCOPES, Scope
from app.service.access import scope_needed
from app.service.db.audit import ACTOR, Actor
from app.service.db.keys import Key
from app.service.parts import Service, service_of
from app.settings import is_loopback

LOCAL_TENANT = "local"
LOOK_AGAIN_S = 1.0
"""Seconds after which a stream asks `is_still_valid` again; mostly the keyring answers, without a query."""
# Browsers connect again by themselves and send the number of the last event that they saw.
RECONNECT_MS = 2000
"""Milliseconds after which a stream that ends because the service stops should be asked for again: a restart takes seconds."""
KEY_IS_OVER = "the key is no longer valid"
"""The last that a stream says whose key was revoked or has expired."""
_bearer = HTTPBearer(auto_error=False, description="A key made by `meshwright keys create`; not needed on loopback.")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request acts for."""

    tenant: str
    scopes: tuple[Scope, ...]
    key_id: str | None = None
    """The key that was shown; None where none is needed."""
    secret: str | None = field(default=None, repr=False)
    """What was shown, which is looked at again while a stream goes on."""

    @property
    def holder(self) -> str:
        """Whose requests are counted together: those of one key, or of everybody where none is needed."""
        return self.key_id or self.tenant


async def principal_of(
    request: Request,
    service: Annotated[Service, Depends(service_of)],
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Principal:
    """The request's tenant, whose example objects exist afterwards.

    Raises:
        UnauthorizedError: a key is needed but missing, or the key that was given is not valid.
        ForbiddenError: the key lacks the scope that this call needs, or no key is needed, but the request addressed the
            service by a public name.
    """
    # A key that was given is checked even where none is needed: a client that sends a revoked one should hear of it on the
    # developer's machine already. The header is looked at too, since `HTTPBearer` ignores schemes other than Bearer.
    if credentials is not None or "authorization" in request.headers:
        key = None if credentials is None else await found_key(service, credentials.credentials)
        if credentials is None or key is None:
            raise UnauthorizedError("this key is not valid", hint="Create one with `meshwright keys create`.")
        return await key_holder(request, service, key, secret=credentials.credentials)
    if service.settings.is_open:
        return await local_principal(request, service)
    raise UnauthorizedError("this service needs a key", hint="Send it as `Authorization: Bearer …`.")


async def figures_reader(
    request: Request,
    service: Annotated[Service, Depends(service_of)],
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> None:
    """Lets those see the service's figures who are on its own machine, and elsewhere whoever has a key that may read.

    Raises:
        UnauthorizedError, ForbiddenError: as `principal_of`.
    """
    if service.settings.is_open or (request.client is not None and is_loopback(request.client.host)):
        return
    await principal_of(request, service, credentials)


async def found_key(service: Service, secret: str) -> Key | None:
    """The valid key with this secret; None if it is unknown, revoked or expired."""
    # A key that was met a moment ago costs neither a thread nor a query: most requests are of this kind.
    return service.keyring.remembered(secret) or await run_in_threadpool(service.keyring.find, secret)


async def is_still_valid(service: Service, principal: Principal) -> bool:
    """Whether what a stream was opened with would open it now, as far as this process knows."""
    try:
        return principal.secret is None or await found_key(service, principal.secret) is not None
    except SQLAlchemyError:
        # While the database is away nobody can say so; the stream itself goes on when it is back.
        return True


async def key_holder(request: Request, service: Service, key: Key, *, secret: str) -> Principal:
    """Who shows this key by its secret, if it may make this call.

    Raises:
        ForbiddenError: it lacks the scope that this call needs.
    """
    return await _admitted(request, service, Principal(key.tenant, key.scopes, key.id, secret))


async def local_principal(request: Request, service: Service) -> Principal:
    """The tenant of everybody who can connect to a service that needs no key, and who may do everything there.

    Raises:
        ForbiddenError: the request addressed the service by a public name.
    """
    _require_local_name(request)
    return await _admitted(request, service, Principal(LOCAL_TENANT, SCOPES))


async def _admitted(request: Request, service: Service, principal: Principal) -> Principal:
    needed = scope_needed(request.method, request.scope["route"].path)
    if needed is not None and needed not in principal.scopes:
        raise ForbiddenError(
            f"this call needs the scope {needed}, and this key has only {' and '.join(principal.scopes)}",
            hint=f"Use a key that has it: `meshwright keys create NAME --scope {needed}`, or POST /v1/keys.",
        )
    service.rates.count_request(principal.holder)
    if not service.is_seeded(principal.tenant):
        await run_in_threadpool(service.seed, principal.tenant)
    # After the examples, which nobody asked for. What this request changes is entered in the audit log under its key.
    address = request.client.host[:64] if request.client else None
    ACTOR.set(Actor(principal.key_id or LOCAL_TENANT, request.scope.get("request_id"), address))
    return principal


def _require_local_name(request: Request) -> None:
    # Against DNS rebinding: a web page whose own name was made to resolve to 127.0.0.1 could otherwise read and write here
    # through its visitor's browser. It also stops a reverse proxy from opening a keyless service to everybody. Names without
    # a dot (`localhost`, a container's name) belong to no public domain.
    name = request.url.hostname or ""
    if not is_loopback(name) and "." in name:
        raise ForbiddenError(
            f"without a key this service answers only to this machine's own names, not to {name}",
            hint="Use http://127.0.0.1, or send a key with the request.",
        )
