"""Support rooms for tests: `make_room` overrides only what matters, `T0` is a moment in the past."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId

from models import support_room
from queue_manager.core.clock import minutes, seconds
from services.due_work import Limits
from services.realtime import EmitFailed
from services.support_snooze import SupportSnooze

T0 = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


def make_room(snoozed_until: Any = T0 - minutes(5), **fields: Any) -> ObjectId:
    """Insert a snoozed room and return its id."""
    room = {
        "account_id": ObjectId(),
        "status": "snoozed",
        "assigned_to": ObjectId(),
        "snooze_time": {"time": snoozed_until, "set_by": ObjectId(), "set_at": T0 - minutes(60)},
        **fields,
    }
    return support_room.rooms().insert_one(room).inserted_id


def get_room(room_id: ObjectId) -> dict[str, Any]:
    room = support_room.rooms().find_one({"_id": room_id})
    assert room is not None
    return room


def resnooze(room_id: ObjectId, until: datetime) -> None:
    """Do what the product does when an agent snoozes a room: our fields are not its business."""
    support_room.rooms().update_one({"_id": room_id}, {"$set": {"snooze_time.time": until, "status": "snoozed"}})


class RecordedEvents:
    """Takes events, or refuses the next `refusals` of them."""

    def __init__(self, refusals: int = 0) -> None:
        self.sent: list[tuple[str, dict[str, Any], str]] = []
        self.refusals = refusals

    def emit(self, event: str, data: dict[str, Any], *, room: str) -> None:
        self.emit_all(event, [(room, data)])

    def emit_all(self, event: str, messages: Iterable[tuple[str, dict[str, Any]]]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise EmitFailed("Redis is away")
        self.sent += [(event, data, room) for room, data in messages]


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: datetime = T0) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta) -> None:
        self.now += by


def make_service(clock: Callable[[], datetime], events: RecordedEvents | None = None, **limits: int) -> SupportSnooze:
    return SupportSnooze(
        clock=clock,
        events=events or RecordedEvents(),
        limits=Limits(**{"batch": 100, "max_queue": 1000, "ahead": 200, **limits}),
        claims=support_room.claims(),
        ahead_by=seconds(10),
    )
