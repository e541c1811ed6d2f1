"""Support snooze: the claims of one scan, beside a write per room that comes to the same end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from uuid import uuid4

from bson import ObjectId

from beat_schedule import SYSTEMS
from benchmarks.harness import Bench, Document, Result, Way, expect
from models import database, schema, support_room
from queue_manager.core.clock import hours, seconds
from services.due_work import Backlog
from services.support_snooze import support_snooze

ROOMS, DUE = 100_000, 10_000
Won = list[tuple[str, str]]
"""Rooms and the tokens that hold them."""


def run(bench: Bench) -> Result:
    rooms, due = bench.sized(ROOMS), bench.sized(DUE)
    bench.fill(support_room.rooms(), documents(rooms, due, database.server_now()), rooms)
    schema.migrate(SYSTEMS)

    def check(won: Won) -> None:
        expect("claims", len(won), due)
        expect("rooms claimed", {room for room, _ in won}, {str(_id(number)) for number in range(due)})
        expect("tokens, each of one room", len({token for _, token in won}), due)
        expect("claims in the database", _held(), set(won))
        expect("rooms claimed a second time", claim_in_batches(), [])

    return bench.compare(
        "support snooze",
        f"{rooms:,} rooms, {due:,} of them due",
        [
            Way(name="claims in batches, ours", run=claim_in_batches, check=check, prepare=give_all_back),
            Way(name="a write per room", run=write_per_room, check=check, prepare=give_all_back),
        ],
        notes=["Without publishing. Both ask again in the write whether the room is still due and free."],
    )


def claim_in_batches() -> Won:
    return [(item.args[0], item.token) for batch in support_snooze().claim_due(Backlog()) for item in batch.items]


def write_per_room() -> Won:
    """Find what is due with our index, then claim one room at a time."""
    now, claims = database.server_now(), support_room.claims()
    due, rooms = claims.of.unclaimed(now), support_room.rooms()
    won = []
    for room in rooms.find(due.where, {"snooze_time.time": 1}, hint=due.index, sort=due.sort):
        token = f"{uuid4().hex}-{room['_id']}"
        claim = {
            "token": token,
            "held": True,
            "claimed_until": now + claims.lease,
            "due_at": room["snooze_time"]["time"],
            "losses": 0,
        }
        written = rooms.update_one(
            {**due.where, "_id": room["_id"], "snooze_time.time": room["snooze_time"]["time"]},
            {"$set": {"snooze_queue_in_progress": True, "claim": claim}},
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
    support_room.rooms().update_many(
        {"claim.held": True}, {"$unset": {"claim": ""}, "$set": {"snooze_queue_in_progress": False}}
    )


def _held() -> set[tuple[str, str]]:
    """Return what is held in the form that a claim has."""
    held = {"claim.held": True, "claim.losses": 0, "snooze_queue_in_progress": True}
    as_due = {"$expr": {"$eq": ["$claim.due_at", "$snooze_time.time"]}}
    found = support_room.rooms().find({**held, **as_due}, {"claim.token": 1})
    return {(str(room["_id"]), room["claim"]["token"]) for room in found}


def _id(number: int) -> ObjectId:
    return ObjectId(f"{number + 1:024x}")
