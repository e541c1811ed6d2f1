"""Support snooze: a room whose snooze has ended comes back to the open queue, and its account's dashboards see it.

What is due: `snooze_time.time <= now` in `support_rooms`, and nobody holds the room.
Guarantee: a room wakes once for each snooze, never early, whatever crashes; a new snooze set meanwhile survives.
Options: `QM_SNOOZE_SCAN_SECONDS` (10), `QM_LEASE_SECONDS` (60), `QM_AHEAD_LIMIT` (200 rooms), `QM_MAX_QUEUE`.
Emits: `support_room_updated` to `support-<account_id>`: `{room_id, action: "unsnoozed", timestamp}`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bson import ObjectId

from models import database, support_room
from models.listing import Position
from queue_manager.core.clock import minutes, parse_utc, seconds, to_iso
from queue_manager.core.errors import NotYetDue, reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from services.claimed_work import ClaimedItems
from services.due_work import DueItem, Figures, Limits
from services.items import Item, State
from services.realtime import EmitFailed, Events, events

INITIATOR = "QM/conversations/support-snooze"
EMIT_ATTEMPTS = 3
LONGEST_AHEAD = minutes(5)  # a worker holds what is sent ahead; the broker would send it again after 10 minutes

log = get_logger(INITIATOR)
Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SupportSnooze(ClaimedItems):
    """The snooze of support rooms: `ClaimedItems` for the scan and for people, `unsnooze` for the item."""

    events: Events
    shown = support_room.SHOWN

    def give_up(self, item: DueItem, *, error: str) -> None:
        room_id, meant = _arguments(*item.args)
        cooled = support_room.cool_off(room_id, snoozed_until=meant, token=item.token, error=error, now=self.clock())
        if cooled is None:
            self.release([item])
            return
        log.error(
            "Room could not be unsnoozed; it is tried again after a pause",
            room_id=str(room_id),
            failures=cooled["unsnooze_failures"],
            retry_at=to_iso(cooled["unsnooze_retry_at"]),
            error=error,
        )

    def unsnooze(self, room_id: str, snoozed_until: str | None, *, token: str) -> Result:
        """Wake one room if its snooze has ended and still is the one meant; then tell its account's dashboards.

        Args:
            room_id: 24 hexadecimal digits.
            snoozed_until: the snooze that was due when this was sent; `None`: whichever the room has.
            token: this task's id, by which it holds the room if it came from a scan.

        Returns:
            `{success, room_id, unsnoozed_at}`, or `{skipped, reason}` when there is nothing to do.

        Raises:
            PermanentError: an argument is malformed.
            NotYetDue: this task holds the room and came before its time.
        """
        room_key, meant = _arguments(room_id, snoozed_until)
        try:
            # One moment for both: between two looks at the clock the snooze could end.
            now = self.clock()
            woken = support_room.wake(room_key, snoozed_until=meant, task_id=token, now=now)
            if woken is None:
                return self._not_woken(room_key, meant, token, now)
        except database.Error as error:
            log.error(f"Database update failed: {reason(error)}", room_id=room_id)
            raise
        log.info("Unsnoozed 1 rooms", room_id=room_id, account_id=str(woken.get("account_id")))
        return self._announce(woken)

    def describe(self, room: dict[str, Any], state: State, position: Position) -> Item:
        claimed = super().describe(room, state, position)
        failures = room.get("unsnooze_failures", 0)
        since = claimed.since
        if state == "failed" and claimed.next_at is not None and failures:
            since = claimed.next_at - support_room.pause_after(failures)
        error, attempts = room.get("unsnooze_error"), claimed.attempts + failures
        return replace(claimed, title=str(room.get("account_id", "")), reason=error, attempts=attempts, since=since)

    def _not_woken(self, room_key: ObjectId, meant: datetime | None, token: str, now: datetime) -> Result:
        """Tell why the write did not apply; give the room back if we hold it for a snooze that is gone."""
        room = support_room.find(room_key)
        if room is None:
            return _skipped("Room not found")
        snooze = room.get("snooze_time")
        if not isinstance(snooze, dict) and room.get("unsnoozed_by_task") == token:
            return self._announce(room)
        ends_at = snooze.get("time") if isinstance(snooze, dict) else None
        holds = room.get("claim", {}).get("token") == token
        if isinstance(ends_at, datetime) and meant in (None, ends_at) and ends_at > now:
            if holds:
                raise NotYetDue(ends_at - now)
            return _skipped("Still snoozed")
        if holds:
            self.claims.release({room_key: token}, now=now)
        return _skipped("Snooze changed")

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
    chosen = settings()
    return SupportSnooze(
        claims=support_room.claims(),
        clock=database.server_now,
        events=events(),
        limits=Limits.from_settings(),
        ahead_by=min(seconds(chosen.qm_snooze_scan_seconds), LONGEST_AHEAD),
    )


def figures() -> Figures:
    """Return pending, in progress, stuck, cooling off, the lag of the oldest due room, and what is malformed."""
    malformed = support_room.malformed()
    ids = ", ".join(str(room_id) for room_id in malformed.ids)
    problem = f"{malformed.count} rooms have a malformed snooze_time and can never fall due: {ids}"
    return Figures(
        numbers={**support_room.claims().figures(database.server_now()), "malformed": malformed.count},
        problems=[problem] if malformed.count else [],
    )


def _arguments(room_id: Any, snoozed_until: Any = None) -> tuple[ObjectId, datetime | None]:
    """Read the item's arguments. Raises PermanentError, which names the one that is malformed."""
    return database.object_id(room_id, field="room_id"), parse_utc(snoozed_until, field="snoozed_until")


def _skipped(reason: str) -> Result:
    return {"skipped": True, "reason": reason}
