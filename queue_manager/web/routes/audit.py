"""The audit over HTTP: who changed what, newest first."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from models import audit
from models.audit import ActionName, AuditEntry, AuditQuery
from queue_manager.core.errors import NotFound
from queue_manager.operations import audit as operations
from queue_manager.operations.audit import MAX_AUDIT_PAGE, AuditedChange, AuditPage, audit_page, one_change
from queue_manager.operations.diagnosis import MAX_SEARCH_ID_LENGTH
from queue_manager.operations.schemas import At, EmptyIsNone
from queue_manager.server_calls import mongodb
from queue_manager.web.auth.authorization import (
    EACH,
    CurrentActor,
    CurrentPrincipal,
    operator_of,
    require_system,
    viewer,
)
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import Cursor, NoBody
from services.undo import Undone

MAX_NAME_LENGTH = 256

queries = APIRouter(prefix="/api", dependencies=[viewer], responses=errors(503), tags=["audit"])
commands = APIRouter(prefix="/api", dependencies=[operator_of(EACH)], responses=errors(503), tags=["audit"])

NameFilter = Annotated[Annotated[str, Field(max_length=MAX_NAME_LENGTH)] | None, EmptyIsNone]
IdFilter = Annotated[Annotated[str, Field(max_length=MAX_SEARCH_ID_LENGTH)] | None, EmptyIsNone]
TimeFilter = Annotated[At, EmptyIsNone]


@queries.get("/audit")
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


@queries.get("/audit/{id}", responses=errors(404))
def show_audit(id: str) -> AuditedChange:
    """Return one entry."""
    with mongodb():
        return one_change(_entry(id))


def _entry(id: str) -> AuditEntry:
    if (found := audit.get(id)) is None:
        raise NotFound(f"There is no entry {id!r:.100} in the audit log", field="id")
    return found


@commands.post("/audit/{id}/undo", responses=errors(404, 409))
def undo_action(
    id: str,
    _: NoBody,
    actor: CurrentActor,
    principal: CurrentPrincipal,
) -> Undone:
    """Restore what an action deleted, within 10 minutes. Messages go to the end of their state."""
    with mongodb():
        entry = _entry(id)
    require_system(principal, entry.system)
    return operations.undo_action(entry, actor)
