"""Support snooze: a room whose snooze has ended comes back to the open queue, and its account's dashboards see it.

What is due: `snooze_time.time <= now` in `support_rooms`, and nobody holds the room.
Guarantee: a room wakes once for each snooze, never early, whatever crashes; a new snooze set meanwhile survives.
Options: `QM_SNOOZE_SCAN_SECONDS` (10), `QM_LEASE_SECONDS` (60), `QM_AHEAD_LIMIT` (200 rooms), `QM_MAX_QUEUE`.
Emits: `support_room_updated` to `support-<account_id>`: `{room_id, action: "unsnoozed", timestamp}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from models import database, support_room
from models.database import Document
from models.listing import Position
from queue_manager.core.clock import minutes, parse_utc, seconds, to_iso
from queue_manager.core.errors import NotYetDue, PermanentError, reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.items import Item, State
from queue_manager.system import System, SystemStats
from services.claimed_work import ClaimedItems
from services.due_work import DueItem, Limits
from services.problems import add_claim_problems
from services.realtime import EmitFailed, Events, events

INITIATOR = "QM/conversations/support-snooze"
EMIT_ATTEMPTS = 3
A_MOMENT = seconds(0.1)  # our clock lags by a round trip, so what is sent ahead of its time comes a little early
LONGEST_AHEAD = minutes(5)  # a worker holds what is sent ahead, until its time

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
            room_id=item.args[0],
            failures=cooled["unsnooze_failures"],
            retry_at=to_iso(cooled["unsnooze_retry_at"]),
            error=error,
        )

    def unsnooze(self, room_id: str, snoozed_until: str | None, *, token: str) -> Result:
        """Wake one room if its snooze has ended and still is the one meant; then tell its account's dashboards.

        Args:
            room_id: 24 hexadecimal digits; an id of another type as `database.id_text` writes it.
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
        return self._announce([woken])[0]

    def describe(self, room: dict[str, Any], state: State, position: Position) -> Item:
        claimed = super().describe(room, state, position)
        failures = room.get("unsnooze_failures", 0)
        since = claimed.since
        if state == "failed" and claimed.next_at is not None and failures:
            since = claimed.next_at - support_room.pause_after(failures)
        error, attempts = room.get("unsnooze_error"), claimed.attempts + failures
        return replace(claimed, title=str(room.get("account_id", "")), reason=error, attempts=attempts, since=since)

    def unsnooze_many(self, items: Sequence[DueItem]) -> list[Result | None]:
        """Wake many rooms, as `unsnooze` each: one write, one read and one message to Redis for all.

        Returns:
            The result of each, `None` where a room is not as its scan left it: `unsnooze` tells what is to be done.

        Raises:
            NotYetDue: some fall due in a moment, and none was woken.
        """
        named = [_named(*item.args) for item in items]
        now = self.clock()
        early = [meant - now for _, meant in filter(None, named) if meant and timedelta(0) < meant - now <= A_MOMENT]
        if early:
            raise NotYetDue(max(early))
        ids = [room_id for room_id, _ in filter(None, named)]
        woken = support_room.wake_many(ids, [item.token for item in items], now=now)
        if count := sum(room["unsnoozed_at"] == now for room in woken):
            log.info(f"Unsnoozed {count} rooms")
        whose = [(database.id_key(room["_id"]), room["unsnoozed_by_task"]) for room in woken]
        results = dict(zip(whose, self._announce(woken), strict=True))
        return [
            None if one is None else results.get((one[0], item.token)) for one, item in zip(named, items, strict=True)
        ]

    def _not_woken(self, room_key: Any, meant: datetime | None, token: str, now: datetime) -> Result:
        """Tell why the write did not apply; give the room back if we hold it for a snooze that is gone."""
        room = support_room.find(room_key)
        if room is None:
            return _skipped("Room not found")
        if room.get("unsnoozed_by_task") == token:
            return self._announce([room])[0]  # whether it was announced is not known, also if it is snoozed again
        snooze = room.get("snooze_time")
        ends_at = snooze.get("time") if isinstance(snooze, dict) else None
        holds = room.get("claim", {}).get("token") == token
        if isinstance(ends_at, datetime) and meant in (None, ends_at) and ends_at > now:
            if holds:
                raise NotYetDue(ends_at - now)
            return _skipped("Still snoozed")
        if holds:
            self.claims.release({room_key: token}, now=now)
        return _skipped("Snooze changed")

    def _announce(self, rooms: Sequence[Document]) -> list[Result]:
        """Emit the events of woken rooms, with the timestamps that the database has; closed rooms have none."""
        results = [_result(room) for room in rooms]
        messages = [
            (
                f"support-{room.get('account_id')}",
                {"room_id": result["room_id"], "action": "unsnoozed", "timestamp": at},
            )
            for room, result in zip(rooms, results, strict=True)
            if "status" not in result and (at := result["unsnoozed_at"])
        ]
        for attempt in range(1, EMIT_ATTEMPTS + 1) if messages else ():
            try:
                self.events.emit_all("support_room_updated", messages)
                break
            except EmitFailed as error:
                log.warning(f"Socket emit failed: {error}", rooms=len(messages), attempt=attempt)
        return results


def _result(room: Document) -> Result:
    done = {"success": True, "room_id": database.shown_id(room["_id"]), "unsnoozed_at": to_iso(room["unsnoozed_at"])}
    return {**done, "status": "closed"} if room.get("status") == "closed" else done


def support_snooze() -> SupportSnooze:
    """Return the service of this process, on the real database, clock and events."""
    return SupportSnooze(
        claims=support_room.claims(),
        clock=database.server_now,
        events=events(),
        limits=Limits.from_settings(),
        ahead_by=min(system.period(settings()), LONGEST_AHEAD),
    )


def stats() -> SystemStats:
    """Return pending, in progress, stuck, cooling off, the lag of the oldest due room, and what is malformed."""
    malformed = support_room.malformed()
    ids = ", ".join(map(database.shown_id, malformed.ids))
    claims, now = support_room.claims(), database.server_now()
    stats = SystemStats(numbers={**claims.figures(now), "malformed": malformed.count})
    add_claim_problems(stats, claims, thing="room", period=system.period(settings()), now=now)
    if malformed.count:
        stats.add_problem(f"{malformed.count} rooms have a malformed snooze_time and can never fall due: {ids}")
    return stats


def _arguments(room_id: Any, snoozed_until: Any = None) -> tuple[Any, datetime | None]:
    """Read the item's arguments. Raises PermanentError, which names the one that is malformed."""
    return database.read_id(room_id, field="room_id"), parse_utc(snoozed_until, field="snoozed_until")


def _named(*args: Any) -> tuple[Any, datetime | None] | None:
    """Read the item's arguments; `None` for malformed ones, which the item's own task refuses."""
    try:
        return _arguments(*args)
    except PermanentError:
        return None


def _skipped(reason: str) -> Result:
    return {"skipped": True, "reason": reason}


system = System(
    name="support-snooze",
    title="Rooms",
    description="Snoozed support rooms, opened again when their time comes.",
    every=lambda chosen: seconds(chosen.qm_snooze_scan_seconds),
    flag="QM_CONVERSATIONS",
    scan_task="tasks.support_snooze.scan_expired_snoozes",
    item_task="tasks.support_snooze.unsnooze_room",
    queue="support-snooze",
    trigger="conversations/support-snooze",
    page="/rooms",
    items=support_snooze,
    items_name="rooms",
    panel="rooms.html",
    stats=stats,
    collections=support_room.collections,
)
