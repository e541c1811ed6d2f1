"""The audit: pages of who changed what, newest first; undo of a deletion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import redis
from pydantic import BaseModel, Field

from beat_schedule import systems
from models import audit, database
from models.audit import AuditEntry, AuditQuery
from models.database import server_now
from queue_manager.core.errors import Unavailable
from queue_manager.core.redis_client import outage
from queue_manager.operations import cursors
from queue_manager.operations.schemas import NextCursor, ServerTime
from queue_manager.server_calls import mongodb
from services.audit import Actor, recorded
from services.undo import Undone, undo

AUDIT_LIST = "audit"
MAX_AUDIT_PAGE = 200


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


def audit_page(query: AuditQuery, *, cursor: str | None, limit: int) -> AuditPage:
    """Return a page of the audit. Raises `InvalidField` for an invalid cursor, `Unavailable`."""
    after = cursors.decode(cursor, of=AUDIT_LIST)
    with mongodb(), cursors.checked():
        found, end = audit.page(query, after=after, limit=limit)
        now = server_now()
    return AuditPage(entries=list(map(one_change, found)), cursor=cursors.encode(end, of=AUDIT_LIST), server_time=now)


def undo_action(entry: AuditEntry, actor: Actor) -> Undone:
    """Restore what an action deleted, within 10 minutes. Messages go to the end of their state.

    Raises:
        CannotUndo: nothing can be restored.
        Unavailable: a server does not answer.
    """
    with recorded(
        actor, "undo", system=entry.system, ids=entry.ids, total=entry.total, detail=f"of {entry.id}"
    ) as action:
        try:
            result = undo(entry, action, now=server_now())
        except database.Error as error:
            database.leave_if_logged_out(error)
            raise Unavailable(database.describe(error)) from error
        except redis.RedisError as error:
            raise Unavailable(f"Redis {outage(error)}") from error
        action.is_complete = result.is_complete
    return result


def one_change(entry: AuditEntry) -> AuditedChange:
    """Return an entry as the API has it."""
    page = next((system.page for system in systems() if system.name == entry.system), None)
    return AuditedChange(**vars(entry), page=page)
