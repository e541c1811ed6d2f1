"""Support snooze on Celery, tuned by hand for this one job: a task for a batch of rooms, and no leases.

It wakes the same documents and emits the same event. A room has no message, attempt or event of its own in Celery, and
is not looked at again before it is woken; rooms whose message is lost stay flagged.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from functools import cache
from typing import Any

import redis
from bson import ObjectId
from celery import Celery

from benchmarks.rooms.first_attempt import rooms

BATCH = 1_000

app = Celery("hand_tuned", broker=os.environ.get("REDIS_URL"))
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    timezone="UTC",
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=2,
    task_routes={f"{__name__}.scan": {"queue": "scans"}},
    beat_schedule={"snooze": {"task": f"{__name__}.scan", "schedule": 10.0}},
)


@cache
def client() -> redis.Redis:
    return redis.Redis.from_url(os.environ["REDIS_URL"])


@app.task  # type: ignore[untyped-decorator]
def scan() -> None:
    due = {"snooze_time.time": {"$lte": datetime.now(UTC)}, "snooze_queue_in_progress": {"$ne": True}}
    ids = [room["_id"] for room in rooms().find(due, {"_id": 1}, batch_size=10_000)]
    for batch in (ids[first : first + BATCH] for first in range(0, len(ids), BATCH)):
        rooms().update_many({"_id": {"$in": batch}}, {"$set": {"snooze_queue_in_progress": True}})
        unsnooze_rooms.delay([str(id) for id in batch])


@app.task(autoretry_for=(Exception,), retry_backoff=True, max_retries=9)  # type: ignore[untyped-decorator]
def unsnooze_rooms(room_ids: list[str]) -> None:
    now = datetime.now(UTC)
    ids = [ObjectId(id) for id in room_ids]
    accounts = {room["_id"]: room["account_id"] for room in rooms().find({"_id": {"$in": ids}}, {"account_id": 1})}
    rooms().update_many(
        {"_id": {"$in": ids}, "status": "snoozed"},
        {
            "$set": {"status": "open", "unsnoozed_at": now, "snooze_queue_in_progress": False},
            "$unset": {"snooze_time": ""},
        },
    )
    at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    with client().pipeline(transaction=False) as pipe:
        for id, account in accounts.items():
            data = {"room_id": str(id), "action": "unsnoozed", "timestamp": at}
            pipe.publish(os.environ["SOCKETIO_CHANNEL"], json.dumps(event(f"support-{account}", data)))
        pipe.execute()


def event(room: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return the message that python-socketio publishes for its servers."""
    message = {"method": "emit", "event": "support_room_updated", "data": data, "namespace": "/", "room": room}
    return {**message, "skip_sid": None, "callback": None, "host_id": "hand-tuned"}
