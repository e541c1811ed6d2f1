"""What the outside world sees: events on Socket.IO's channel, and each time that a room was woken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import redis
from bson import ObjectId

from models.database import client
from models.support_room import rooms
from tasks import app
from tests.rooms import get_room


def is_open(room_id: ObjectId) -> bool:
    room = get_room(room_id)
    return room["status"] == "open" and "snooze_time" not in room


def times_woken(room_id: ObjectId) -> list[datetime]:
    """Return every `unsnoozed_at` that was ever written to the room, from the server's own record of writes."""
    oplog = client().local["oplog.rs"].with_options(codec_options=rooms().codec_options)
    of_room = {"ns": rooms().full_name, "op": "u", "o2._id": room_id}
    entries = oplog.find({"$or": [of_room, {"o.applyOps": {"$elemMatch": of_room}}]})
    return [
        moment for entry in entries for write in _writes(entry, room_id) for moment in _values(write, "unsnoozed_at")
    ]


def _writes(entry: dict[str, Any], room_id: ObjectId) -> list[Any]:
    """Return what an entry writes to the room: by itself, or as a part of a transaction."""
    if "applyOps" not in entry["o"]:
        return [entry["o"]]
    return [one["o"] for one in entry["o"]["applyOps"] if one["op"] == "u" and one["o2"]["_id"] == room_id]


def _values(document: Any, key: str) -> Iterator[Any]:
    if isinstance(document, dict):
        if key in document and document[key] is not False:
            yield document[key]
        for value in document.values():
            yield from _values(value, key)


class Heard:
    """The events published since the beginning."""

    def __init__(self, pubsub: redis.client.PubSub) -> None:
        self._pubsub = pubsub
        self._events: list[dict[str, Any]] = []

    def of(self, room_id: ObjectId) -> list[dict[str, Any]]:
        """Return the data of every event about the room, in order."""
        while (message := self._pubsub.get_message(ignore_subscribe_messages=True)) is not None:
            self._events.append(json.loads(message["data"]))
        return [event["data"][0] for event in self._events if event["data"][0]["room_id"] == str(room_id)]


@contextmanager
def listening(url: str) -> Iterator[Heard]:
    with redis.Redis.from_url(url) as connection, connection.pubsub() as pubsub:
        pubsub.subscribe("socketio")
        assert pubsub.get_message(timeout=5) is not None
        yield Heard(pubsub)


def send_scan() -> None:
    """Do what beat does at each tick."""
    app.send_task("tasks.support_snooze.scan_expired_snoozes", queue="scans", expires=5)
