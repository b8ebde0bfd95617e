"""Who is asking. On loopback everybody who can connect is the tenant `local`; elsewhere the key identifies the tenant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.errors import ForbiddenError, UnauthorizedError
from app.service.db.keys import tenant_of
from app.service.parts import Service, service_of
from app.settings import is_loopback

LOCAL_TENANT = "local"
_bearer = HTTPBearer(auto_error=False, description="A key made by `meshwright keys create`; not needed on loopback.")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a request acts for."""

    tenant: str


def principal_of(
    request: Request,
    service: Annotated[Service, Depends(service_of)],
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Principal:
    """The request's tenant, whose example objects exist afterwards.

    Raises:
        UnauthorizedError: a key is needed but missing, or the key that was given is not valid.
        ForbiddenError: no key is needed, but the request addressed the service by a public name.
    """
    # A key that was given is checked even where none is needed: a client that sends a revoked one should hear of it on the
    # developer's machine already. The header is looked at too, since `HTTPBearer` ignores schemes other than Bearer.
    if credentials is not None or "authorization" in request.headers:
        tenant = None if credentials is None else tenant_of(service.engine, credentials.credentials)
        if tenant is None:
            raise UnauthorizedError("this key is not valid", hint="Create one with `meshwright keys create`.")
    elif service.settings.is_open:
        return local_principal(request, service)
    else:
        raise UnauthorizedError("this service needs a key", hint="Send it as `Authorization: Bearer …`.")
    service.seed(tenant)
    return Principal(tenant)


def local_principal(request: Request, service: Service) -> Principal:
    """The tenant of everybody who can connect to a service that needs no key.

    Raises:
        ForbiddenError: the request addressed the service by a public name.
    """
    _require_local_name(request)
    service.seed(LOCAL_TENANT)
    return Principal(LOCAL_TENANT)


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
