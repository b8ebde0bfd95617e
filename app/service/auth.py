"""Who is asking. On loopback everybody who can connect is the tenant `local`; elsewhere a key says which tenant it is."""

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
    """The request's tenant; its example objects are there afterwards.

    Raises:
        UnauthorizedError: a key is needed and missing, or was given and is not valid.
        ForbiddenError: no key is needed, but the request came by a public name.
    """
    if credentials is not None or "authorization" in request.headers:
        tenant = None if credentials is None else tenant_of(service.engine, credentials.credentials)
        if tenant is None:
            raise UnauthorizedError("this key is not valid", hint="Make one with `meshwright keys create`.")
    elif service.settings.is_open:
        _require_local_name(request)
        tenant = LOCAL_TENANT
    else:
        raise UnauthorizedError("a key is needed", hint="Send it as `Authorization: Bearer …`.")
    service.seed(tenant)
    return Principal(tenant)


def _require_local_name(request: Request) -> None:
    # A web page whose own name was pointed at 127.0.0.1 would otherwise read and write here through its visitor's browser;
    # and a proxy in front would open the service to everybody. Names without a dot belong to no public domain.
    name = request.url.hostname or ""
    if not is_loopback(name) and "." in name:
        raise ForbiddenError(
            f"without keys this service answers to this machine's own names only, not to {name}",
            hint="Use http://127.0.0.1, or send a key.",
        )
