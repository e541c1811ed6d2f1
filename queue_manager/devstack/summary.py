"""One line every 10 s on what happened to the rooms, counted in MongoDB.

Run as `python -m queue_manager.devstack.summary` with MONGO_DB_URL set. While MongoDB is away it says so.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import UTC, datetime
from typing import Any

from pymongo import DESCENDING, MongoClient, timeout
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from queue_manager.core.clock import minutes

PERIOD = 10.0  # seconds
TIME_LIMIT = 3.0  # seconds for all counts: on a large collection of somebody's own they must not weigh


def describe(rooms: Collection[dict[str, Any]], now: datetime) -> str:
    """Count the rooms at `now` and say it in one line."""
    snoozed = rooms.count_documents({"snooze_time.time": {"$gt": now}})
    due = rooms.count_documents({"snooze_time.time": {"$lte": now}})
    woken = rooms.count_documents({"unsnoozed_at": {"$type": "date"}})
    lately = rooms.count_documents({"unsnoozed_at": {"$gt": now - minutes(1)}})
    line = f"rooms: {snoozed} snoozed, {due} due, {woken} woken ({lately} in the last minute)"
    last = rooms.find_one(
        {"unsnoozed_at": {"$type": "date"}, "demo_due_at": {"$type": "date"}},
        sort=[("unsnoozed_at", DESCENDING)],
    )
    if last is None:
        return line
    lag = (last["unsnoozed_at"] - last["demo_due_at"]).total_seconds()
    return f"{line}, lag of the last {lag:.2f} s"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    url = os.environ["MONGO_DB_URL"]
    with MongoClient[dict[str, Any]](url, tz_aware=True, serverSelectionTimeoutMS=3_000) as client:
        rooms = client.get_default_database()["support_rooms"]
        while True:
            time.sleep(PERIOD)
            try:
                with timeout(TIME_LIMIT):
                    print(describe(rooms, datetime.now(UTC)))
            except PyMongoError as error:
                print(f"MongoDB did not answer: {type(error).__name__}")


if __name__ == "__main__":
    main()
