"""Support snooze: a room whose snooze has ended comes back to the open queue, and its account's dashboards see it.

What is due: `snooze_time.time <= now` in `support_rooms`, and nobody holds the room.
Guarantee: a room wakes once for each snooze, never early, whatever crashes; a new snooze set meanwhile survives.
Options: `QM_SNOOZE_SCAN_SECONDS` (10), `QM_LEASE_SECONDS` (60), `QM_AHEAD_LIMIT` (200 rooms), `QM_MAX_QUEUE`.
Emits: `support_room_updated` to `support-<account_id>`: `{room_id, action: "unsnoozed", timestamp}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo.errors import PyMongoError

from models import database, support_room
from queue_manager.core.clock import parse_utc, seconds, to_iso
from queue_manager.core.errors import NotYetDue, PermanentError
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from services.due_work import DueBatch, DueItem, Limits, claim_in_batches
from services.realtime import EmitFailed, Events, events

INITIATOR = "QM/conversations/support-snooze"
EMIT_ATTEMPTS = 3

log = get_logger(INITIATOR)
Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SupportSnooze:
    """The snooze of support rooms: `DueWork` for the scan, `unsnooze` for the item."""

    clock: Callable[[], datetime]
    events: Events
    limits: Limits
    lease: timedelta
    ahead_by: timedelta

    def claim_due(self, waiting: int) -> Iterator[DueBatch]:
        """Claim the rooms that are due, and those that fall due before the next scan, these with their time."""
        claims = support_room.claims()
        batches = claim_in_batches(
            claims, clock=self.clock, waiting=waiting, limits=self.limits, ahead_by=self.ahead_by
        )
        for batch in batches:
            now = self.clock()
            items = [
                DueItem(
                    id=room.id,
                    token=room.token,
                    args=(str(room.id), to_iso(room.due_at)),
                    eta=room.due_at if room.due_at > now else None,
                )
                for room in batch.won
            ]
            yield DueBatch(found=batch.found, items=items)

    def release(self, items: Sequence[DueItem]) -> None:
        support_room.claims().release({item.id: item.token for item in items}, now=self.clock())

    def keep(self, tokens: Sequence[str]) -> None:
        support_room.claims().renew(tokens, until=self.clock() + self.lease)

    def postpone(self, *args: Any, token: str, wait: timedelta) -> None:
        support_room.claims().renew([token], until=self.clock() + wait + self.lease)

    def give_up(self, room_id: str, snoozed_until: str | None = None, *, token: str, error: str) -> None:
        room = _object_id(room_id)
        meant = parse_utc(snoozed_until, field="snoozed_until")
        cooled = support_room.cool_off(room, snoozed_until=meant, token=token, error=error, now=self.clock())
        if cooled is None:
            self._release(room, token)
            return
        log.error(
            "Room could not be unsnoozed; it is tried again after a pause",
            room_id=room_id,
            failures=cooled["unsnooze_failures"],
            retry_at=to_iso(cooled["unsnooze_retry_at"]),
            error=error,
        )

    def unsnooze(self, room_id: str, *, snoozed_until: datetime | None, token: str) -> Result:
        """Wake one room if its snooze has ended and still is the one meant; then tell its account's dashboards.

        Args:
            room_id: 24 hexadecimal digits.
            snoozed_until: the snooze that was due when this was sent; `None`: whichever the room has.
            token: this task's id; the claim it holds, if it came from a scan.

        Returns:
            `{success, room_id, unsnoozed_at}`, or `{skipped, reason}` when there is nothing to do.

        Raises:
            PermanentError: `room_id` is no ObjectId.
            NotYetDue: this task holds the room and came before its time.
        """
        room_key = _object_id(room_id)
        try:
            woken = support_room.wake(room_key, snoozed_until=snoozed_until, task_id=token, now=self.clock())
            if woken is None:
                return self._not_woken(room_key, snoozed_until=snoozed_until, token=token)
        except PyMongoError as error:
            log.error(f"Database update failed: {error}", room_id=room_id)
            raise
        log.info("Unsnoozed 1 rooms", room_id=room_id, account_id=str(woken.get("account_id")))
        return self._announce(woken)

    def _not_woken(self, room_key: ObjectId, *, snoozed_until: datetime | None, token: str) -> Result:
        room = support_room.find(room_key)
        if room is None:
            return _skipped("Room not found")
        snoozed = isinstance(room.get("snooze_time"), dict)
        if not snoozed and room.get("unsnoozed_by_task") == token:
            return self._announce(room)
        ends_at = room["snooze_time"].get("time") if snoozed else None
        if isinstance(ends_at, datetime) and snoozed_until in (None, ends_at) and ends_at > (now := self.clock()):
            if room.get("claim", {}).get("token") == token:
                raise NotYetDue(ends_at - now)
            return _skipped("Still snoozed")
        if room.get("claim", {}).get("token") == token:
            self._release(room_key, token)
        return _skipped("Snooze changed")

    def _release(self, room_key: ObjectId, token: str) -> None:
        support_room.claims().release({room_key: token}, now=self.clock())

    def _announce(self, room: dict[str, Any]) -> Result:
        """Emit the event of a woken room, with the timestamp that the database has; a closed room has none."""
        timestamp = to_iso(room["unsnoozed_at"])
        result: Result = {"success": True, "room_id": str(room["_id"]), "unsnoozed_at": timestamp}
        if room.get("status") == "closed":
            return {**result, "status": "closed"}
        event = {"room_id": str(room["_id"]), "action": "unsnoozed", "timestamp": timestamp}
        for attempt in range(1, EMIT_ATTEMPTS + 1):
            try:
                self.events.emit("support_room_updated", event, room=f"support-{room.get('account_id')}")
                break
            except EmitFailed as error:
                log.warning(f"Socket emit failed: {error}", room_id=str(room["_id"]), attempt=attempt)
        return result


def support_snooze() -> SupportSnooze:
    """Return the service of this process, on the real database, clock and events."""
    now = settings()
    return SupportSnooze(
        clock=database.server_now,
        events=events(),
        limits=Limits(batch=now.qm_claim_batch, max_queue=now.qm_max_queue, ahead=now.qm_ahead_limit),
        lease=seconds(now.qm_lease_seconds),
        ahead_by=seconds(now.qm_snooze_scan_seconds),
    )


def health() -> Result:
    """Return pending, in progress, stuck, cooling off, the lag of the oldest due room, and what is malformed."""
    return support_room.health(database.server_now())


def _object_id(room_id: str) -> ObjectId:
    # ObjectId() would make a new id of None.
    if not isinstance(room_id, str) or not ObjectId.is_valid(room_id):
        raise PermanentError(f"room_id: {room_id!r} is not an ObjectId (24 hexadecimal digits)")
    return ObjectId(room_id)


def _skipped(reason: str) -> Result:
    return {"skipped": True, "reason": reason}
