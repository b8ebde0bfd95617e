"""What is asked and answered about keys and the audit log. Answers never hold a key, but for the one that says that it was made."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from app.scopes import USUAL_SCOPES, Scope
from app.service.db.audit import Action
from app.service.db.keys import LONGEST_LIFE_S, NAME
from planner.schemas.base import ContractModel

EXAMPLE_KEY_REQUEST: JsonDict = {"name": "ci of the training team", "scopes": ["read", "plan"], "expires_in_s": 7776000}


class KeyRequest(ContractModel):
    """A key to be made."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_KEY_REQUEST]})

    name: Annotated[str, Field(strict=True, pattern=NAME)]
    """What the key is for: one line of up to 80 characters."""
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1, max_length=20)] = USUAL_SCOPES
    """What it may do. `read` opens what is stored, `plan` asks for plans, evaluations and judgements, `profile` brings measurements,
    `admin` manages keys and reads the audit log."""
    expires_in_s: Annotated[float, Field(strict=True, ge=1.0, le=LONGEST_LIFE_S)] | None = None
    """Seconds for which it is valid; null where it does not expire."""


class KeyEntry(ContractModel):
    """A key without its secret."""

    id: str
    """Id of the key, by which it is revoked."""
    tenant: str
    """Whose plans and measurements it reaches."""
    name: str
    """What it is for."""
    scopes: list[Scope]
    """What it may do."""
    created_at: str
    """When it was made, RFC 3339 in UTC."""
    expires_at: str | None
    """When it ceases to be valid, RFC 3339 in UTC; null where it does not."""
    last_used_at: str | None
    """When it was last used, to the minute, RFC 3339 in UTC; null where it never was."""
    revoked_at: str | None
    """When it was revoked, RFC 3339 in UTC; null where it was not."""


class NewKey(KeyEntry):
    """A key that has just been made."""

    key: str
    """The key itself, which is shown this once: send it as `Authorization: Bearer KEY`."""


class KeyPage(ContractModel):
    """Keys, newest first."""

    items: list[KeyEntry]
    """The keys of this page."""
    next_cursor: str | None
    """Where the next page begins; null at the end."""


class AuditEntryDocument(ContractModel):
    """One thing that was done."""

    id: str
    """Id of the entry."""
    at: str
    """When, RFC 3339 in UTC."""
    by: str
    """Id of the key that was shown; `local` where none is needed, `command line`, or `service` for what nobody asked for."""
    action: Action
    """What was done."""
    object: str
    """Id of what it was done to."""
    request_id: str | None
    """Id of the request, as it stands in the service's log; null where there was none."""
    address: str | None
    """Address that the request came from, which behind a proxy is what the proxy says; null where there was none."""


class AuditPage(ContractModel):
    """The audit log, newest first."""

    items: list[AuditEntryDocument]
    """The entries of this page."""
    next_cursor: str | None
    """Where the next page begins; null at the end."""
