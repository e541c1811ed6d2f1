"""The audit over HTTP: who changed what, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

import redis
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from beat_schedule import systems
from models import audit, database
from models.audit import ActionName, AuditEntry, AuditQuery
from models.database import server_now
from queue_manager.core.clock import parse_utc
from queue_manager.core.errors import PermanentError, Unavailable
from queue_manager.core.redis_client import outage
from queue_manager.server_calls import mongodb
from queue_manager.web.auth import CurrentActor, CurrentPrincipal, require_system
from queue_manager.web.diagnosis import MAX_SEARCH_ID_LENGTH
from queue_manager.web.http import cursors
from queue_manager.web.http.cursors import Cursor
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.http.requests import EmptyIsNone, JsonBody, NoMembers
from queue_manager.web.http.responses import NextCursor, ServerTime
from services.audit import recorded
from services.undo import CannotUndo, Undone, undo

AUDIT_LIST = "audit"
MAX_NAME_LENGTH = 256
MAX_AUDIT_PAGE = 200
MAX_UNDO_BODY = 1_024  # bytes

router = APIRouter(responses=errors(503))
commands = APIRouter(responses=errors(503))


@dataclass(frozen=True, kw_only=True)
class AuditedChange(AuditEntry):
    """An action of an operator or a program."""

    page: Annotated[
        str | None, Field(description="The path of the page of its system, below which each id has its own.")
    ]


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
        return one_change(_entry(id))


def _entry(id: str) -> AuditEntry:
    if (found := audit.get(id)) is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not found", f"There is no entry {id!r:.100} in the audit log", field="id")
    return found


@commands.post("/audit/{id}/undo", responses=errors(404, 409))
def undo_action(
    id: str,
    _: Annotated[NoMembers, Depends(JsonBody(NoMembers, max_bytes=MAX_UNDO_BODY, is_required=False))],
    actor: CurrentActor,
    principal: CurrentPrincipal,
) -> Undone:
    """Restore what an action deleted, within 10 minutes. Messages go to the end of their state."""
    with mongodb():
        entry, now = _entry(id), server_now()
    require_system(principal, entry.system)
    with recorded(actor, "undo", system=entry.system, ids=entry.ids, total=entry.total, detail=f"of {id}") as action:
        try:
            result = undo(entry, now=now)
        except CannotUndo as error:
            raise ApiError(HTTPStatus.CONFLICT, "cannot be undone", str(error)) from None
        except database.Error as error:
            raise Unavailable(database.describe(error)) from error
        except redis.RedisError as error:
            raise Unavailable(f"Redis {outage(error)}") from error
        action.count = result.restored
    return result


def one_change(entry: AuditEntry) -> AuditedChange:
    """Return an entry as the API has it."""
    page = next((system.page for system in systems() if system.name == entry.system), None)
    return AuditedChange(**vars(entry), page=page)
