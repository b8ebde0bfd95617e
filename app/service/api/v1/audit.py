"""The audit log of a tenant, for its administrators."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from app.service.api.dependencies import Caller, Here, Limit, Place, page_of
from app.service.api.key_documents import AuditPage
from app.service.db.audit import page_of_audit
from app.service.timestamps import rfc3339

router = APIRouter(prefix="/v1/audit", tags=["keys"])


@router.get("", summary="Who did what", response_description="A page of the audit log.", response_model=AuditPage)
def list_audit(caller: Caller, service: Here, place: Place, limit: Limit = 20) -> JSONResponse:
    """What was done in your tenant, newest first: by which key, to which object, with which request and from where."""
    found = page_of_audit(service.engine, caller.tenant, limit=limit, after=place)
    last = (found[-1].at, found[-1].id) if len(found) == limit else None
    items = [
        {
            "id": entry.id,
            "at": rfc3339(entry.at),
            "by": entry.by,
            "action": entry.action,
            "object": entry.object,
            "request_id": entry.request_id,
            "address": entry.address,
        }
        for entry in found
    ]
    return JSONResponse(page_of(items, last=last))
