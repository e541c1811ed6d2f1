"""Support snooze on Celery as one would first write it: a scan that sends a task a room, a task that reads and writes.

It wakes the same documents and emits the same event; a flag keeps the next scan from sending a room again. It is right
as long as nothing crashes: nobody takes back the flag of a room whose message was lost.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from functools import cache
from typing import Any

import socketio
from bson import ObjectId
from celery import Celery
from celery.utils.log import get_task_logger
from pymongo import MongoClient
from pymongo.collection import Collection

INDEX = "snooze_time.time"

logger = get_task_logger(__name__)

app = Celery("first_attempt", broker=os.environ.get("REDIS_URL"))
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    timezone="UTC",
    broker_connection_retry_on_startup=True,
    beat_schedule={"snooze": {"task": f"{__name__}.scan", "schedule": 10.0}},
)


@cache
def rooms() -> Collection[dict[str, Any]]:
    client: MongoClient[dict[str, Any]] = MongoClient(os.environ["MONGO_DB_URL"], tz_aware=True)
    return client.get_default_database()["support_rooms"]


@cache
def events() -> Any:
    return socketio.RedisManager(os.environ["REDIS_URL"], channel=os.environ["SOCKETIO_CHANNEL"], write_only=True)


@app.task  # type: ignore[untyped-decorator]
def scan() -> int:
    now = datetime.now(UTC)
    found = rooms().find({"snooze_time.time": {"$lte": now}, "snooze_queue_in_progress": {"$ne": True}}, {"_id": 1})
    due = [room["_id"] for room in found]
    rooms().update_many({"_id": {"$in": due}}, {"$set": {"snooze_queue_in_progress": True}})
    for room_id in due:
        unsnooze_room.delay(str(room_id))
    if due:
        logger.info("Sent %d rooms", len(due))
    return len(due)


@app.task(autoretry_for=(Exception,), retry_backoff=True, max_retries=9)  # type: ignore[untyped-decorator]
def unsnooze_room(room_id: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    room = rooms().find_one({"_id": ObjectId(room_id)})
    if room is None or room["status"] != "snoozed" or room["snooze_time"]["time"] > now:
        return {"skipped": True}
    rooms().update_one(
        {"_id": room["_id"], "status": "snoozed"},
        {
            "$set": {"status": "open", "unsnoozed_at": now, "snooze_queue_in_progress": False},
            "$unset": {"snooze_time": ""},
        },
    )
    logger.info("Unsnoozed room %s", room_id)
    at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    data = {"room_id": room_id, "action": "unsnoozed", "timestamp": at}
    events().emit("support_room_updated", data, room=f"support-{room['account_id']}")
    return {"success": True, "room_id": room_id, "unsnoozed_at": at}
