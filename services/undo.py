"""Undo of deletions: for ten minutes, what people deleted can be restored from the archive.

Guarantee: an id that exists again is not overwritten, so an undo that was interrupted can be repeated. While one runs,
another one of the same action is refused for up to a minute. A message goes to the end of its state, and one that was
being processed waits again. A job that is blocked by another unique or singular one stays in the archive.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeAlias

from bson import ObjectId
from pydantic import Field

from models import archive, audit, job_operations
from models.archive import UNDO_TIME, Kind
from models.audit import AuditEntry
from models.database import Document, Error
from queue_manager.broker import dead_letters
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.errors import AppError
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from services.audit import AuditedAction
from services.message_queue import queue_admin

UNDO_BUDGET = seconds(50)
MAX_UNDO_DURATION = minutes(1)  # with the slice during which the budget ends; after it, an undo counts as killed
RUNNING_TIME = minutes(1)  # since its last copy: a deletion without a recorded end may still run
Restored: TypeAlias = tuple[int, list[Document]]
"""The number of restored records, and the records that may be restored later."""


class CannotUndo(AppError):
    """An action cannot be undone; the text is the reason."""


@dataclass(frozen=True, kw_only=True)
class Undone:
    """What an undo has restored."""

    message: str
    restored: int
    existing: Annotated[int, Field(description="Records whose ids existed again; they were left as they are.")]
    blocked: Annotated[
        int,
        Field(
            description="Jobs that a unique or singular job with the same arguments keeps out: undo again without it."
        ),
    ]
    is_complete: Annotated[bool, Field(description="False if the time was not enough: repeat it then.")]


def undo(entry: AuditEntry, action: AuditedAction, *, now: datetime) -> Undone:
    """Restore what an action deleted; stop after `UNDO_BUDGET`. What is left can be restored for another `UNDO_TIME`.

    `action` is the undo, in which is counted what has been restored.

    Raises:
        CannotUndo: it deleted nothing that is kept, it is too late, it was undone already, it is being undone, or it
            may still be running and would delete what is restored.
        QueueFull: the memory of the message queue's server is full. The undo can be repeated.
    """
    if now > (entry.undo_until or entry.at + UNDO_TIME):
        raise CannotUndo(f"The time to undo it ({UNDO_TIME.total_seconds() / 60:.0f} minutes) has passed")
    if entry.is_unfinished and archive.was_extended(ObjectId(entry.id), since=now - RUNNING_TIME):
        raise CannotUndo("It may still be running; it can be undone a minute after its last deletion")
    if (ends_at := audit.begin_undo(entry.id, within=MAX_UNDO_DURATION)) is None:
        raise CannotUndo("It is being undone")
    try:
        return _restored(entry, action)
    finally:
        with suppress(Error):  # another undo may begin a little later
            audit.release_undo(entry.id, ends_at)


def _restored(entry: AuditEntry, action: AuditedAction) -> Undone:
    ends_at = time.monotonic() + UNDO_BUDGET.total_seconds()
    counts, action.count = Counter[str](), 0
    for some in archive.slices(ObjectId(entry.id)):
        if not counts:  # before the first slice, which an error may interrupt
            archive.prolong(ObjectId(entry.id))
            audit.prolong_undo(entry.id, UNDO_TIME)
        if time.monotonic() > ends_at:
            return _undone(counts, is_complete=False)
        restored, blocked = _RESTORE[some.kind](some.records)
        archive.add(ObjectId(entry.id), some.kind, blocked)
        archive.delete([some.id])
        counts += Counter(restored=restored, blocked=len(blocked), existing=len(some.records) - restored - len(blocked))
        action.count = counts["restored"]
    if not counts:
        raise CannotUndo("Nothing to restore: no deletion was archived, or it was already undone")
    if not counts["blocked"]:
        audit.end_undo(entry.id)
    return _undone(counts, is_complete=True)


def _undone(counts: Counter[str], *, is_complete: bool) -> Undone:
    restored, existing, blocked = counts["restored"], counts["existing"], counts["blocked"]
    others = f"; {existing} existed already" if existing else ""
    others += f"; {blocked} kept out by a job with the same name and arguments" if blocked else ""
    left = "" if is_complete else "; more remain, repeat to continue"
    message = f"{restored} restored{others}{left}"
    return Undone(message=message, restored=restored, existing=existing, blocked=blocked, is_complete=is_complete)


def _restore_dead_letters(kept: Sequence[Mapping[str, Any]]) -> Restored:
    if (url := settings().broker_redis_url) is None:
        raise CannotUndo("The broker keeps no dead letters any more")
    with connect(url) as client:
        return dead_letters.restore(client, kept), []


_RESTORE: Mapping[Kind, Callable[[Sequence[Document]], Restored]] = {
    "message": lambda kept: (queue_admin().restore(kept), []),
    "job": job_operations.restore,
    "dead-letter": _restore_dead_letters,
}
