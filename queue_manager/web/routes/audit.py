"""The audit over HTTP: who changed what, newest first."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from beat_schedule import systems
from models import audit
from models.audit import ActionName, AuditEntry, AuditQuery, Outcome, Via
from models.database import server_now
from queue_manager.core.clock import parse_utc
from queue_manager.core.errors import PermanentError
from queue_manager.diagnosis import MAX_SEARCH_ID_LENGTH
from queue_manager.web.http import cursors
from queue_manager.web.http.cursors import Cursor
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.http.requests import EmptyIsNone
from queue_manager.web.http.responses import Moment, NextCursor, ServerTime
from queue_manager.web.server_calls import mongodb

AUDIT_LIST = "audit"
MAX_NAME_LENGTH = 256
MAX_AUDIT_PAGE = 200

router = APIRouter(responses=errors(503))


class AuditedChange(BaseModel):
    """An action of an operator or a program."""

    id: str
    at: Moment
    who: str = Field(description="The name of a key, `loopback` without keys, or the user who ran the command.")
    via: Via
    address: str = Field(description="The IP address of the client, or the host on which the command ran.")
    action: ActionName
    system: str | None
    ids: list[str] = Field(description="What it was done to: in a list the first 20, of one entry the first 1,000.")
    total: int | None = Field(description="How many it was to be done to, if that is known.")
    filter: dict[str, Any] | None = Field(description="How they were selected, unless by their ids.")
    detail: str
    count: int | None = Field(description="How many were changed, where that is counted.")
    before: dict[str, Any] | None = Field(description="The values that an edit changed; long ones end with `…`.")
    after: dict[str, Any] | None
    outcome: Outcome = Field(description="`unknown` while it runs, and if its process or a server failed meanwhile.")
    error: str | None
    page: str | None = Field(description="The path of the page of its system, below which each id has its own.")


class AuditPage(BaseModel):
    """A page of the audit, newest first."""

    entries: list[AuditedChange]
    cursor: NextCursor
    server_time: ServerTime


def _moment(text: Any) -> Any:
    try:
        return parse_utc(text or None, field="")
    except PermanentError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


NameFilter = Annotated[Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None, EmptyIsNone]
IdFilter = Annotated[Annotated[str, Field(max_length=MAX_SEARCH_ID_LENGTH)] | None, EmptyIsNone]
TimeFilter = Annotated[
    datetime | None, BeforeValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})
]


@router.get("/audit")
def list_audit(
    who: NameFilter = None,
    action: Annotated[ActionName | None, EmptyIsNone] = None,
    system: NameFilter = None,
    id: Annotated[IdFilter, Query(description="Of an item, a message or a job.")] = None,
    since: Annotated[TimeFilter, Query(alias="from", description="At this time or later.")] = None,
    until: Annotated[TimeFilter, Query(alias="to", description="At this time or earlier.")] = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_AUDIT_PAGE)] = 50,
) -> AuditPage:
    """List who changed what, newest first. Adding, receiving and acknowledging messages is not recorded."""
    query = AuditQuery(who=who, action=action, system=system, id=id, since=since, until=until)
    return audit_page(query, cursor=cursor, limit=limit)


def audit_page(query: AuditQuery, *, cursor: str | None, limit: int) -> AuditPage:
    """Return a page of the audit. Raises `ApiError` for an invalid cursor, `Unavailable`."""
    after = cursors.decode(cursor, of=AUDIT_LIST)
    with mongodb(), cursors.checked():
        found, end = audit.page(query, after=after, limit=limit)
        now = server_now()
    next_cursor = None if end is None else cursors.encode(end, of=AUDIT_LIST)
    return AuditPage(entries=list(map(one_change, found)), cursor=next_cursor, server_time=now)


@router.get("/audit/{id}", responses=errors(404))
def show_audit(id: str) -> AuditedChange:
    """Return one entry."""
    with mongodb():
        found = audit.get(id)
    if found is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not found", f"There is no entry {id!r:.100} in the audit", field="id")
    return one_change(found)


def one_change(entry: AuditEntry) -> AuditedChange:
    """Return an entry as the API has it."""
    page = next((system.page for system in systems() if system.name == entry.system), None)
    return AuditedChange(**vars(entry), page=page)
