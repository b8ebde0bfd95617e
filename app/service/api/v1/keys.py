"""Keys: made, listed and revoked by the tenant's own administrators. Each reaches the keys of its tenant only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response

from app.scopes import scopes_named
from app.service.api.dependencies import STORABLE, Body, Caller, Here, Limit, Place, page_of
from app.service.api.key_documents import KeyPage, KeyRequest, NewKey
from app.service.api.openapi import json_body
from app.service.db.keys import Key, create_key, page_of_keys, revoke_key
from app.service.timestamps import rfc3339
from cost_models.inputs.fields import validated

router = APIRouter(prefix="/v1/keys", tags=["keys"])
KeyId = Annotated[
    str,
    Path(
        max_length=80,
        pattern=STORABLE,
        description="Id of a key, which is not the key itself.",
        openapi_examples={"unknown": {"value": "key-0123456789ab"}},
    ),
]


@router.post(
    "",
    status_code=201,
    summary="Make a key",
    response_description="The new key, which is shown this once.",
    response_model=NewKey,
    openapi_extra=json_body(KeyRequest, path="/v1/keys"),
)
async def make_key(body: Body, caller: Caller, service: Here) -> JSONResponse:
    """Make a key of your tenant. Keep it: the service stores its digest only and cannot show it again."""
    asked = validated(KeyRequest, body.value, pointer="")
    key, secret = await run_in_threadpool(
        create_key,
        service.engine,
        tenant=caller.tenant,
        name=asked.name,
        scopes=scopes_named(asked.scopes),
        expires_in_s=asked.expires_in_s,
    )
    # Neither a browser nor a proxy may keep an answer that holds a secret.
    return JSONResponse({**_entry(key), "key": secret}, status_code=201, headers={"Cache-Control": "no-store"})


@router.get("", summary="List keys", response_description="A page of your tenant's keys.", response_model=KeyPage)
def list_keys(caller: Caller, service: Here, place: Place, limit: Limit = 20) -> JSONResponse:
    """The keys of your tenant, newest first, revoked and expired ones too; never the keys themselves."""
    found = page_of_keys(service.engine, caller.tenant, limit=limit, after=place)
    last = (found[-1].created_at, found[-1].id) if len(found) == limit else None
    return JSONResponse(page_of([_entry(key) for key in found], last=last))


@router.delete(
    "/{key_id}",
    status_code=204,
    summary="Revoke a key",
    response_description="It is revoked.",
    response_class=Response,
)
def revoke(key_id: KeyId, caller: Caller, service: Here) -> Response:
    """Revoke a key of your tenant, at once here and within seconds in other processes of the service."""
    revoke_key(service.engine, key_id, tenant=caller.tenant)
    service.keyring.forget(key_id)
    return Response(status_code=204)


def _entry(key: Key) -> dict[str, Any]:
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "scopes": list(key.scopes),
        "created_at": rfc3339(key.created_at),
        "expires_at": key.expires_at and rfc3339(key.expires_at),
        "last_used_at": key.last_used_at and rfc3339(key.last_used_at),
        "revoked_at": key.revoked_at and rfc3339(key.revoked_at),
    }
