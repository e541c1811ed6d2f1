"""The demo's support: agents who snooze rooms, now and then one of them again.

A room of the demo carries `demo_due_at`, its snooze's end once more, by which the summary measures the lag. The newest
500 that woke are kept.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import DESCENDING
from pymongo.collection import Collection
from pymongo.database import Database

from models import support_room
from queue_manager.core.clock import seconds, truncate

Room = dict[str, Any]

PERIOD = seconds(3)
SNOOZED_AT_START = 16
MIN_SNOOZE, MAX_SNOOZE = 15.0, 60.0  # seconds that a snooze lasts: a scan finds it before it ends
RESNOOZE_CHANCE = 0.2
KEPT_WOKEN = 500
ACCOUNTS = [ObjectId() for _ in range(3)]
AGENTS = [ObjectId() for _ in range(5)]
SUBJECTS = [
    "Invoice is wrong",
    "Cannot sign in",
    "Export takes very long",
    "Question about the plan",
    "Thank you!",
]


def start(database: Database[Room], now: datetime) -> None:
    """Insert rooms whose snooze ends soon after the processes have started."""
    _rooms(database).insert_many([new_room(now, ends_in=_some_time()) for _ in range(SNOOZED_AT_START)])


def go_on(database: Database[Room], now: datetime) -> None:
    """Do what agents do in one period: snooze one to three rooms, now and then snooze one again."""
    rooms = _rooms(database)
    rooms.insert_many([new_room(now, ends_in=_some_time()) for _ in range(random.randint(1, 3))])
    if random.random() < RESNOOZE_CHANCE:
        still_snoozed = {"demo": True, "status": "snoozed", "snooze_time.time": {"$gt": now}}
        rooms.update_one(still_snoozed, {"$set": snooze(now, ends_in=_some_time())})
    clear_up(rooms)


def snooze(now: datetime, *, ends_in: timedelta) -> Room:
    """Return the fields of a room that an agent snoozes at `now`."""
    end, agent = truncate(now + ends_in), random.choice(AGENTS)
    return {
        "status": "snoozed",
        "assigned_to": agent,
        "snooze_time": {"time": end, "set_by": agent, "set_at": truncate(now)},
        "demo_due_at": end,
    }


def new_room(now: datetime, *, ends_in: timedelta) -> Room:
    """Return a whole room, snoozed at `now`."""
    about = {"account_id": random.choice(ACCOUNTS), "subject": random.choice(SUBJECTS), "demo": True}
    return {**about, **snooze(now, ends_in=ends_in)}


def clear_up(rooms: Collection[Room]) -> None:
    """Delete the demo's woken rooms beyond the newest 500."""
    woken = rooms.find({"demo": True, "status": "open"}, {"_id": True})
    old = woken.sort("_id", DESCENDING).skip(KEPT_WOKEN)
    rooms.delete_many({"_id": {"$in": [room["_id"] for room in old]}, "demo": True})


def _rooms(database: Database[Room]) -> Collection[Room]:
    return database[support_room.ROOMS_COLLECTION]


def _some_time() -> timedelta:
    return seconds(random.uniform(MIN_SNOOZE, MAX_SNOOZE))
