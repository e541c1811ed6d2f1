"""Support rooms for tests: `make_room` overrides only what matters, `T0` is a moment in the past."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId

from models import database, support_room
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import milliseconds, minutes, seconds
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from queue_manager.items import DueItem, Verdict
from services.due_documents import work_of
from services.due_documents.work import DocumentWork
from services.due_work import DueWork, Limits
from services.realtime import EmitFailed
from services.support_snooze import system

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


@contextmanager
def unchangeable(collection: str, id: Any) -> Iterator[None]:
    """Have MongoDB refuse to change one document."""
    database.database().command("collMod", collection, validator={"_id": {"$ne": id}})
    try:
        yield
    finally:
        database.database().command("collMod", collection, validator={})


def get_room(room_id: ObjectId) -> dict[str, Any]:
    room = support_room.rooms().find_one({"_id": room_id})
    assert room is not None
    return room


def is_awake(id: Any) -> bool:
    room = get_room(id)
    return room["status"] == "open" and "snooze_time" not in room and room["snooze_queue_in_progress"] is False


def resnooze(room_id: ObjectId, until: datetime) -> None:
    """Do what the product does when an agent snoozes a room: our fields are not its business."""
    support_room.rooms().update_one({"_id": room_id}, {"$set": {"snooze_time.time": until, "status": "snoozed"}})


class RecordedEvents:
    """Takes events, or refuses the next `refusals` of them; `again_in` is when they must be emitted again."""

    def __init__(self, refusals: int = 0) -> None:
        self.sent: list[tuple[str, dict[str, Any], str]] = []
        self.refusals = refusals
        self.again_in = seconds(0)

    def emit(self, event: str, data: dict[str, Any], *, room: str) -> timedelta:
        return self.emit_all(event, [(room, data)])

    def emit_all(self, event: str, messages: Iterable[tuple[str, dict[str, Any]]]) -> timedelta:
        if self.refusals:
            self.refusals -= 1
            raise EmitFailed("Redis is unavailable")
        self.sent += [(event, data, room) for room, data in messages]
        return self.again_in


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: datetime = T0) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta) -> None:
        self.now += by


class AgingClock(HandClock):
    """A clock with which the leases in Redis grow older."""

    def advance(self, by: timedelta) -> None:
        super().advance(by)
        with connect(settings().redis_url) as client:
            for key in client.scan_iter("qm:lease:*", _type="zset"):
                for name, score in client.zrange(key, 0, -1, withscores=True):
                    client.zadd(key, {name: score - milliseconds(by)})


def make_work(clock: Callable[[], datetime], **limits: int) -> DocumentWork:
    """Return the work of support snooze by this clock."""
    bounds = Limits(**{"batch": 100, "max_queue": 1000, "ahead": 200, **limits})
    return replace(work_of(system), clock=clock, limits=bounds, ahead=seconds(10))


def scan(work: DueWork, waiting: int = 0) -> list[DueItem]:
    """Do what a scan does while `waiting` messages wait in the broker; return what it sent."""
    items: list[DueItem] = []
    for batch in work.take_due(lambda: Backlog(waiting)):
        work.mark_dispatched(batch)
        items += batch.items
    return items


def execute(work: DocumentWork, item: DueItem) -> dict[str, Any]:
    """Do what the task of an item does."""
    return work.execute(*item.args, task_id=item.task_id)


def execute_batch(work: DocumentWork, items: Sequence[DueItem]) -> list[dict[str, Any] | None]:
    """Do what a batch of these items does, and require that it reaches all of them, and that no function fails."""
    results = work.execute_batch(items)
    reached = [result for result in results if not isinstance(result, Verdict | Exception)]
    assert len(reached) == len(results)
    return reached


def lose(work: DocumentWork, item: DueItem, *, ago: timedelta) -> None:
    """Have a worker receive an item and die, so that its lease ended that long ago."""
    work.renew([item])
    with connect(settings().redis_url) as client:
        second, micros = client.time()
        ended = second * 1000 + micros // 1000 - milliseconds(ago)
        client.zadd(f"qm:lease:{system.name}:running", {item.lease: ended})


def lease_state(work: DocumentWork, item: DueItem) -> str:
    (status,) = work.leases.statuses([item.lease])
    return status.state
