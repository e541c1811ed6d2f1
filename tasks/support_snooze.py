"""Celery tasks of support snooze: a scan for ended snoozes every few seconds, and one task for each room.

Another application ends the snooze of a room that is due with `unsnooze_room.delay(room_id)`.
"""

from __future__ import annotations

from typing import Any

from services.due_documents import work_of
from services.support_snooze import INITIATOR, system
from tasks.document_tasks import after_of, dispatch, item_of
from tasks.item import current_task_id
from tasks.scan import ScanReport, scan_task


@scan_task(
    initiator=INITIATOR,
    sent="Processed snooze rooms.",
    failed="Error occured while removing snooze time for rooms",
)
def scan_expired_snoozes() -> ScanReport:
    return dispatch(system)


@item_of(system)
def unsnooze_room(room_id: str, snoozed_until: str | None = None) -> dict[str, Any]:
    return work_of(system).execute(room_id, snoozed_until, task_id=current_task_id())


call_announce = after_of(system)  # the task that repeats a call of `announce` that failed
