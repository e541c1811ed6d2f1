"""Support snooze: the leases of one scan, next to a write per room that comes to the same end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from uuid import uuid4

from bson import ObjectId

from beat_schedule import SYSTEMS
from benchmarks.harness import Bench, Document, Result, Way, end_leases, expect
from models import database, schema, support_room
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import hours, seconds
from queue_manager.core.settings import settings
from services.due_documents import work_of
from services.due_documents.work import DocumentWork
from services.support_snooze import system

ROOMS, DUE = 100_000, 10_000
Won = list[tuple[str, str]]
"""Rooms and the tokens that hold them."""


def run(bench: Bench) -> Result:
    rooms, due = bench.sized(ROOMS), bench.sized(DUE)
    bench.fill(support_room.rooms(), documents(rooms, due, database.server_now()), rooms)
    schema.migrate(SYSTEMS)

    def check(won: Won) -> None:
        expect("rooms taken", [*sorted(room for room, _ in won)], [str(_id(number)) for number in range(due)])
        expect("tokens, each of one room", len({token for _, token in won}), due)
        expect("rooms marked", support_room.rooms().count_documents({support_room.FLAG: True}), due)

    def check_leases(won: Won) -> None:
        check(won)
        expect("leases", _work().leases.stats().in_progress, due)
        expect("rooms taken a second time", lease_in_batches(), [])

    def check_claims(won: Won) -> None:
        check(won)
        found = support_room.rooms().find({"claim.token": {"$gt": ""}}, {"claim.token": 1})
        expect("claims", {(str(room["_id"]), room["claim"]["token"]) for room in found}, set(won))
        expect("rooms claimed a second time", write_per_room(), [])

    return bench.compare(
        "support snooze",
        f"{rooms:,} rooms, {due:,} of them due",
        [
            Way(name="leases in batches, ours", run=lease_in_batches, check=check_leases, prepare=give_all_back),
            Way(name="a write per room", run=write_per_room, check=check_claims, prepare=give_all_back),
        ],
        notes=["Without publishing. Ours keeps the leases in Redis and marks a batch of rooms in one write."],
    )


def lease_in_batches() -> Won:
    work, won = _work(), []
    for batch in work.take_due(Backlog):
        work.mark_dispatched(batch)
        won += [(item.args[0], item.task_id) for item in batch.items]
    return won


def write_per_room() -> Won:
    """Find what is due with our index, then claim one room at a time, in the room."""
    work, now, won = _work(), database.server_now(), []
    for room in work.documents.find(now):
        token = f"{uuid4().hex}-{room['_id']}"
        until = now + seconds(settings().qm_lease_seconds)
        free = {"$or": [{"claim.until": None}, {"claim.until": {"$lte": now}}]}
        written = support_room.rooms().update_one(
            {"_id": room["_id"], support_room.DUE: room["snooze_time"]["time"], **free},
            {"$set": {support_room.FLAG: True, "claim": {"token": token, "until": until}}},
            hint="_id_",
        )
        if written.modified_count:
            won.append((str(room["_id"]), token))
    return won


def documents(rooms: int, due: int, now: datetime) -> Iterator[Document]:
    for number in range(rooms):
        ends_at = now - seconds(number + 1) if number < due else now + hours(24) + seconds(number)
        yield {
            "_id": _id(number),
            "account_id": _id(number % 500),
            "status": "snoozed",
            "snooze_time": {"time": ends_at, "set_by": _id(0), "set_at": now - hours(24)},
        }


def give_all_back() -> None:
    end_leases()
    support_room.rooms().update_many({support_room.FLAG: True}, {"$unset": {"claim": "", support_room.FLAG: ""}})


def _work() -> DocumentWork:
    return work_of(system)


def _id(number: int) -> ObjectId:
    return ObjectId(f"{number + 1:024x}")
