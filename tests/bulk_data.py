"""100,000 documents or messages, stored as the product stores them, but in bulk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from bson import ObjectId

from models import failed_item, job, support_room
from models.database import Document, collection, server_now
from models.job import JobState
from queue_manager import leases
from queue_manager.core.clock import hours, seconds, unix_ms
from queue_manager.core.redis_client import connect
from tests.any_jobs import INVOICE
from tests.room_lease import LEASES
from tests.web.queue_client import NAME, Queue

T = TypeVar("T")
BATCH_SIZE = 10_000
REASONS = 20


def reason(number: int) -> str:
    """Return one of 20 reasons, each with numbers and ids of its own."""
    step = "abcdefghijklmnopqrst"[number % REASONS]
    return f"Step {step}: timeout of 10.0.0.{number % 250}:5432 after {number} ms, request {number:032x}"


def due_rooms(count: int) -> list[tuple[ObjectId, datetime]]:
    """Store rooms whose snooze has ended; return their ids and due times."""
    now = server_now()
    rooms = [(ObjectId(), now - hours(1) - seconds(number / 1000)) for number in range(count)]
    _insert(
        support_room.ROOMS_COLLECTION,
        ({"_id": id, "status": "snoozed", "snooze_time": {"time": at}} for id, at in rooms),
    )
    return rooms


def failed_rooms(count: int, redis_url: str) -> None:
    """Store rooms whose last attempt failed a moment ago."""
    now = server_now()
    rooms = due_rooms(count)
    _insert(
        failed_item.FAILED_ITEMS_COLLECTION,
        (
            {"_id": {"system": LEASES.system, "id": id}, "due_at": due_at, "error": reason(number), "failures": 1}
            | {"failed_at": now - seconds(number / 1000), "retry_at": now + hours(1)}
            for number, (id, due_at) in enumerate(rooms)
        ),
    )
    cooling = LEASES.keys.cooling
    with connect(redis_url) as client:
        for some in _slices(rooms):
            client.zadd(cooling, {leases.name(str(id), due_at): unix_ms(now + hours(1)) for id, due_at in some})


def jobs(count: int, state: JobState) -> None:
    """Store jobs that are pending, or that failed a moment ago."""
    now = server_now()

    def one(number: int) -> Document:
        at = now - seconds(number / 1000)
        return {
            "name": INVOICE,
            "arguments": [number],
            "key": f"{number:032x}",
            "state": state,
            "priority": 0,
            "due": now + hours(1),
            "waiting": now + hours(1),
            "created": at,
            "updated": at,
            "history": [],
            "attempts": 1,
            "last_error": reason(number),
        }

    _insert(job.JOBS_COLLECTION, map(one, range(count)))


def messages(count: int, queue: Queue, *, name: str = NAME, are_dead: bool = False) -> None:
    """Add messages like one that the queue has added, or dead-lettered, itself."""
    original = queue.dead() if are_dead else queue.add(payload={"to": "ada@example.org"})
    stream = f"{name}_dlq" if are_dead else name
    with queue.redis() as client:
        ((_, fields),) = client.xrevrange(stream, count=1)
        metadata = json.loads(client.hget(f"{name}_metadata", original))
        message = json.loads(fields[b"data"])
        for numbers in _slices(range(count)):
            changes = [{"last_error": reason(number)} if are_dead else {} for number in numbers]
            with client.pipeline(transaction=False) as pipe:
                for number, changed in zip(numbers, changes, strict=True):
                    pipe.xadd(stream, {"data": json.dumps(message | changed | {"id": f"{count}-{number}"})})
                records: Mapping[str, Any] = {
                    f"{count}-{number}": json.dumps(metadata | changed | {"sid": sid.decode()})
                    for number, changed, sid in zip(numbers, changes, pipe.execute(), strict=True)
                }
            client.hset(f"{name}_metadata", mapping=records)


def _insert(name: str, documents: Iterator[Document]) -> None:
    for some in _slices(documents):
        collection(name).insert_many(some, ordered=False)


def _slices(all_of_them: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(all_of_them)
    while some := list(islice(rest, BATCH_SIZE)):
        yield some
