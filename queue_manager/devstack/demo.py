"""The demo's product: agents who snooze support rooms, written straight into MongoDB as a product would.

Every room it makes carries `demo: true` and `demo_due_at`, its snooze's end once more, by which the summary
measures the lag. It keeps at most 500 rooms that woke, and deletes no other room than its own. While
MongoDB is away it tries again. Run as `python -m queue_manager.devstack.demo` with MONGO_DB_URL set.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import DESCENDING, MongoClient
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from queue_manager.core.clock import seconds, truncate

Room = dict[str, Any]

OVERDUE_AT_START = 8
PERIOD = 3.0  # seconds between two things that agents do
SHORTEST, LONGEST = 5.0, 60.0  # seconds that a snooze lasts
RESNOOZE_CHANCE = 0.2
KEPT_WOKEN = 500
ACCOUNTS = [ObjectId() for _ in range(3)]
AGENTS = [ObjectId() for _ in range(5)]
SUBJECTS = [
    "Invoice is wrong",
    "Cannot sign in",
    "Export takes for ever",
    "Question about the plan",
    "Thank you!",
]


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


def fill(rooms: Collection[Room], now: datetime) -> None:
    """Insert what a restart after a while would find: snoozes that ended meanwhile, and some still to end."""
    overdue = [new_room(now, ends_in=-seconds(random.uniform(1, 300))) for _ in range(OVERDUE_AT_START)]
    rooms.insert_many([*overdue, *(new_room(now, ends_in=_some_time()) for _ in range(OVERDUE_AT_START))])


def work(rooms: Collection[Room], now: datetime) -> None:
    """Do what agents do in one period: snooze one to three rooms, now and then snooze one again."""
    rooms.insert_many([new_room(now, ends_in=_some_time()) for _ in range(random.randint(1, 3))])
    if random.random() < RESNOOZE_CHANCE:
        still_snoozed = {"demo": True, "status": "snoozed", "snooze_time.time": {"$gt": now}}
        rooms.update_one(still_snoozed, {"$set": snooze(now, ends_in=_some_time())})


def clear_up(rooms: Collection[Room]) -> None:
    """Delete the demo's woken rooms beyond the newest 500."""
    woken = rooms.find({"demo": True, "status": "open"}, {"_id": True})
    old = woken.sort("_id", DESCENDING).skip(KEPT_WOKEN)
    rooms.delete_many({"_id": {"$in": [room["_id"] for room in old]}, "demo": True})


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with MongoClient[Room](os.environ["MONGO_DB_URL"], serverSelectionTimeoutMS=3_000) as client:
        rooms = client.get_default_database()["support_rooms"]
        is_filled = False
        while True:
            try:
                (work if is_filled else fill)(rooms, datetime.now(UTC))
                is_filled = True
                clear_up(rooms)
            except PyMongoError as error:
                print(f"MongoDB is away, trying again: {type(error).__name__}")
            time.sleep(PERIOD)


def _some_time() -> timedelta:
    return seconds(random.uniform(SHORTEST, LONGEST))


if __name__ == "__main__":
    main()
