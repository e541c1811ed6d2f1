"""Support snooze: a room whose snooze has ended is opened, and clients of its account receive an event.

What is due: `snooze_time.time <= now` in `support_rooms`, not in flight and not cooling down after a failure.
Guarantee: each snooze ends once, never early, even if processes crash; a new snooze set meanwhile survives. The event
is sent at least once, and once more if servers of Socket.IO may have been unavailable.
Options: `QM_SNOOZE_SCAN_SECONDS` (10), `QM_LEASE_SECONDS` (60), `QM_AHEAD_LIMIT` (200 rooms), `QM_MAX_QUEUE`,
`QM_SNOOZE_FLAG` (true: also maintain `snooze_queue_in_progress`, which other programs read).
Emits: `support_room_updated` to `support-<account_id>`: `{room_id, action: "unsnoozed", timestamp}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from pymongo import IndexModel

from models import schema, support_room
from models.database import Document, server_now, value_at
from models.document_id import shown_id
from models.listing import Sample
from queue_manager.core.cached_answer import cached_count
from queue_manager.core.clock import seconds, to_iso
from queue_manager.core.log import get_logger
from queue_manager.core.retry import RetryPolicy
from queue_manager.core.settings import settings
from queue_manager.core.wording import many, sentence, when
from queue_manager.explanation import TimelineEvent
from queue_manager.health_rules import Rule
from queue_manager.system import SystemStats
from services.due_documents import CallAgain, DueDocuments, Failure, Run, Written
from services.realtime import EmitFailed, events

INITIATOR = "QM/conversations/support-snooze"
EMIT_ATTEMPTS = 3

log = get_logger(INITIATOR)


@dataclass(frozen=True, kw_only=True, eq=False)
class SupportSnooze(DueDocuments):
    """Snoozed rooms, with the field names and results that the product uses."""

    until: ClassVar[str] = "Snoozed until"
    later: ClassVar[str] = "snoozed"
    not_found: ClassVar[str] = "Room not found"
    not_due: ClassVar[str] = "Still snoozed"
    changed: ClassVar[str] = "Snooze changed"
    arguments: ClassVar[tuple[str, str]] = ("room_id", "snoozed_until")

    def malformed(self, document: Document) -> str | None:
        snooze = document.get("snooze_time")
        has_no_time = isinstance(snooze, dict) and snooze.get("time") is None
        problem = "its snooze_time is malformed: it has no time" if has_no_time else super().malformed(document)
        return problem and f"{problem}; `queue-manager health` counts such rooms"

    def describe_idle(self, document: Document, now: datetime) -> tuple[str, str]:
        status, ended_at = str(document.get("status", "without a status")), document.get("unsnoozed_at")
        if not isinstance(ended_at, datetime):
            return status, sentence("not snoozed", f"its status is {status}")
        by = f"unsnoozed by the task {document['unsnoozed_by_task']}" if "unsnoozed_by_task" in document else ""
        begin = "Open since" if status == "open" else f"Its status is {status}; its last snooze ended at"
        return status, sentence(f"{begin} {when(ended_at, now)}", by)

    def past(self, document: Document) -> Iterator[TimelineEvent]:
        """Yield when the room was snoozed, and when its last snooze ended."""
        set_at, set_by = value_at(document, "snooze_time.set_at"), value_at(document, "snooze_time.set_by")
        if isinstance(set_at, datetime):
            yield TimelineEvent(at=set_at, event="Snoozed", detail="" if set_by is None else f"by {shown_id(set_by)}")
        if isinstance(ended_at := document.get("unsnoozed_at"), datetime):
            yield TimelineEvent(at=ended_at, event="Unsnoozed", task_id=document.get("unsnoozed_by_task"))

    @property
    def flag_field(self) -> str | None:
        return support_room.FLAG if settings().qm_snooze_flag else None

    def result(self, document: Document, *, written_at: datetime) -> dict[str, Any]:
        done = {"success": True, "room_id": shown_id(document["_id"]), "unsnoozed_at": to_iso(written_at)}
        return {**done, "status": "closed"} if document.get("status") == "closed" else done

    def log_written(self, count: int) -> None:
        log.info(f"Unsnoozed {count} rooms")

    def more_indexes(self) -> Sequence[IndexModel]:
        return support_room.indexes()

    def add_stats(self, stats: SystemStats) -> None:
        malformed = cached_count("malformed rooms", _malformed)
        stats.numbers["malformed"] = malformed.count
        if malformed.count:
            ids = ", ".join(map(shown_id, malformed.ids))
            stats.problems[Rule.UNREADABLE_DOCUMENTS] = (
                f"{many(malformed.count, 'room')} with a malformed snooze_time, which can never fall due: {ids}"
            )


def _malformed() -> tuple[Sample, int]:
    found = support_room.malformed()
    return found, found.count


def adoption_notes() -> list[str]:
    notes = []
    if flagged := support_room.count_flagged(server_now()):
        notes.append(
            f"{many(flagged, 'due room')} with {support_room.FLAG}: true, set by another program; rooms that it does "
            "not open are opened here after one lease (QM_LEASE_SECONDS)"
        )
    if malformed := support_room.count_malformed_unindexed():
        notes.append(
            f"{many(malformed, 'room')} with a malformed snooze_time, never opened by either program; "
            "`queue-manager health` names them"
        )
    return notes


system = SupportSnooze(
    name="support-snooze",
    title="Rooms",
    description="Opens support rooms when their snooze ends.",
    items_name="rooms",
    flag="QM_CONVERSATIONS",
    every=lambda chosen: seconds(chosen.qm_snooze_scan_seconds),
    scan_task="tasks.support_snooze.scan_expired_snoozes",
    trigger="conversations/support-snooze",
    page="/rooms",
    item_url=lambda chosen: chosen.qm_room_url,
    initiator=INITIATOR,
    collection=support_room.ROOMS_COLLECTION,
    due=support_room.DUE,
    fields=("account_id", "status"),
    shown=("account_id",),
    adoption_notes=adoption_notes,
    obsolete_indexes={support_room.ROOMS_COLLECTION: schema.CLAIM_INDEXES},
)


@system.item(
    retry=RetryPolicy(max_attempts=10, base=seconds(1)),
    task="tasks.support_snooze.unsnooze_room",
)
def unsnooze(room: Document, run: Run) -> Document:
    opened = {"status": "open"} if room.get("status") in (None, "snoozed") else {}
    return {
        "$set": {**opened, support_room.FLAG: False, "unsnoozed_at": run.now, "unsnoozed_by_task": run.id},
        "$unset": dict.fromkeys(("snooze_time", *support_room.HISTORY), ""),
    }


@system.after
def announce(written: Sequence[Written]) -> None:
    """Emit an event for each room that is not closed. Raises CallAgain and EmitFailed."""
    messages = [
        (
            f"support-{one.document['account_id']}",
            {"room_id": shown_id(one.id), "action": "unsnoozed", "timestamp": to_iso(one.written_at)},
        )
        for one in written
        if "account_id" in one.document and one.document.get("status") != "closed"
    ]
    for attempt in range(1, EMIT_ATTEMPTS + 1) if messages else ():
        try:
            if again_in := events().emit_all("support_room_updated", messages):
                raise CallAgain(again_in)
            return
        except EmitFailed as error:
            log.warning(f"Socket emit failed: {error}", rooms=len(messages), attempt=attempt)
            if attempt == EMIT_ATTEMPTS:
                raise


@system.failed
def record_failure(failure: Failure) -> Document:
    return {
        "$set": {
            support_room.FLAG: False,
            "unsnooze_error": failure.error,
            "unsnooze_failures": failure.failures,
            "unsnooze_retry_at": failure.retry_at,
        }
    }
