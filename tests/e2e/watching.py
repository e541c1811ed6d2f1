"""What an outside observer sees: events on Socket.IO's channel, and each wake of a room."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import redis
from bson import ObjectId, Timestamp

from models.database import Document, client
from models.support_room import rooms
from tasks import app
from tests.rooms import get_room


def is_open(room_id: ObjectId) -> bool:
    room = get_room(room_id)
    return room["status"] == "open" and "snooze_time" not in room


def times_woken(room_id: ObjectId) -> list[datetime]:
    """Return every `unsnoozed_at` that was ever written to the room, from the server's own record of writes."""
    (moments,) = woken([room_id])
    return moments


def woken(room_ids: Sequence[ObjectId]) -> list[list[datetime]]:
    """Return for each room what `times_woken` returns, with one reading of the record, which takes a second if long."""
    moments: dict[Any, list[datetime]] = {id: [] for id in room_ids}
    for write in room_writes({"o2._id": {"$in": [*room_ids]}}):
        moments.get(write.room_id, []).extend(write.values("unsnoozed_at"))
    return [*moments.values()]


@dataclass(frozen=True, kw_only=True)
class RoomWrite:
    """A write to one room: by itself, or as a part of a transaction."""

    room_id: Any
    at: datetime
    """By the clock of the primary that wrote it."""
    change: Document

    def values(self, key: str) -> list[Any]:
        """Return what was written to the field of this name; not that it was removed."""
        return list(_values(self.change, key))


def room_writes(where: Document, *, since: Timestamp | None = None) -> Iterator[RoomWrite]:
    """Yield the writes to rooms in their order, from the server's own record.

    `where` is a condition on the entries; one with several writes is yielded whole. Writes from before `since` are
    left out.
    """
    oplog = client().local["oplog.rs"].with_options(codec_options=rooms().codec_options)
    of_rooms = {"ns": rooms().full_name, "op": {"$in": ["i", "u"]}, **where}
    either: Document = {"$or": [of_rooms, {"o.applyOps": {"$elemMatch": of_rooms}}]}
    for entry in oplog.find(either if since is None else {**either, "ts": {"$gt": since}}):
        for one in entry["o"].get("applyOps", [entry]):
            if one["ns"] == rooms().full_name and one["op"] in "iu":
                yield RoomWrite(room_id=one.get("o2", one["o"])["_id"], at=entry["wall"], change=one["o"])


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

    def of(self, room_id: ObjectId | str) -> list[dict[str, Any]]:
        """Return the data of every event about the room, in order."""
        while (message := self._pubsub.get_message(ignore_subscribe_messages=True)) is not None:
            self._events.append(json.loads(message["data"]))
        return [event["data"][0] for event in self._events if event["data"][0]["room_id"] == str(room_id)]


@contextmanager
def listening(url: str) -> Iterator[Heard]:
    with redis.Redis.from_url(url) as connection, connection.pubsub() as pubsub:
        pubsub.subscribe("socketio")
        assert pubsub.get_message(timeout=20) is not None
        yield Heard(pubsub)


def send_scan() -> None:
    """Do what beat does at each tick."""
    app.send_task("tasks.support_snooze.scan_expired_snoozes", queue="scans", expires=5)
