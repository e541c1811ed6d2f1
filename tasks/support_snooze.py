"""Support snooze at the Celery edge: what ended is scanned every few seconds, each room woken by a task of its own.

Another application wakes a room with `unsnooze_room.delay(room_id)`.
"""

from __future__ import annotations

from typing import Any

from queue_manager.core.clock import seconds
from queue_manager.core.retry import RetryPolicy
from services.support_snooze import INITIATOR, support_snooze
from tasks.base import ScanReport, current_token, fan_out, item_task, scan_task


@scan_task(
    initiator=INITIATOR,
    sent="Processed snooze rooms.",
    failed="Error occured while removing snooze time for rooms",
)
def scan_expired_snoozes() -> ScanReport:
    return fan_out(unsnooze_room, support_snooze())


@item_task(
    queue="support-snooze",
    work=support_snooze,
    retry=RetryPolicy(max_attempts=10, base=seconds(1)),
)
def unsnooze_room(room_id: str, snoozed_until: str | None = None) -> dict[str, Any]:
    return support_snooze().unsnooze(room_id, snoozed_until, token=current_token())
