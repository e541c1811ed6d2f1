"""The work of a soak: rooms, messages and jobs with consecutive numbers, each marked when it is done."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from threading import Event, Thread
from typing import Any

from bson import ObjectId

from benchmarks.harness import WrongResult
from benchmarks.soak import marks
from dev.ports import LOOPBACK
from models import database, support_room
from queue_manager.core.clock import hours, minutes, seconds
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from services.job_queues.jobs import jobs

ACCOUNTS = 500
CONSUMERS = 4  # connections that take messages
MAX_BATCH = 500  # messages of one request
TIMEOUT = 30.0  # seconds
STREAMS = ("/api/overview/events", "/api/queue/events", "/api/jobs/events")
RECEIVE = "/api/queue/message?timeout=1"
PAGES = ("/", "/rooms", "/messages", "/jobs", "/api/jobs/status", "/api/queue/status", "/metrics")


@dataclass
class Work:
    """A kind of work; `add` adds the work of some numbers."""

    kind: str
    add: Callable[[Sequence[int], float], object]
    """Takes the numbers, and the seconds within which the work falls due."""
    burst: int
    """How much of it is added at once to measure the capacity."""
    added: int = 0

    def add_some(self, count: int, due_within: float = 0.0) -> None:
        if count > 0:
            self.add(range(self.added, self.added + count), due_within)
            self.added += count

    @property
    def done(self) -> int:
        return marks.done(self.kind)


@contextmanager
def all_work(port: int) -> Iterator[list[Work]]:
    """Yield the kinds of work, while consumers and three open pages use the web process at `port`."""
    is_over = Event()
    targets = [
        partial(_watch_rooms, is_over),
        *[partial(_consume, is_over, port)] * CONSUMERS,
        *(partial(_follow, is_over, port, path) for path in STREAMS),
    ]
    threads = [Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield [
            Work("rooms", _add_rooms, burst=5_000),
            Work("messages", partial(_add_messages, port), burst=2_000),
            Work("jobs", _add_jobs, burst=1_000),
        ]
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def clear_up() -> None:
    """Delete rooms that woke more than a minute ago, so that the data stay as large as they are."""
    support_room.rooms().delete_many({"unsnoozed_at": {"$lt": database.server_now() - minutes(1)}})


def read_pages(port: int) -> int:
    """Read pages and lists once. Return how many were unavailable, because a server did not answer in time."""
    unavailable = 0
    with closing(HTTPConnection(LOOPBACK, port, timeout=TIMEOUT)) as connection:
        for path in PAGES:
            status, _ = _request(connection, "GET", path, allowed=(HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE))
            unavailable += status == HTTPStatus.SERVICE_UNAVAILABLE
    return unavailable


def _add_rooms(numbers: Sequence[int], due_within: float) -> None:
    now = database.server_now()
    support_room.rooms().insert_many(
        {
            "_id": _id(number),
            "account_id": _id(number % ACCOUNTS),
            "status": "snoozed",
            "snooze_time": {"time": now + seconds(random.uniform(0, due_within)), "set_at": now - hours(24)},
        }
        for number in numbers
    )


def _add_messages(port: int, numbers: Sequence[int], _: float) -> None:
    """Add messages, which are due at once."""
    with closing(HTTPConnection(LOOPBACK, port, timeout=TIMEOUT)) as connection:
        for first in range(0, len(numbers), MAX_BATCH):
            some = [{"type": "soak", "payload": {"number": number}} for number in numbers[first : first + MAX_BATCH]]
            _request(connection, "POST", "/api/queue/batch", some)


def _add_jobs(numbers: Sequence[int], due_within: float) -> None:
    for position, name in enumerate(marks.JOB_NAMES):
        calls = [[number] for number in numbers[position :: len(marks.JOB_NAMES)]]
        jobs.run_many(name, calls, delay=seconds(random.uniform(0, due_within)))


def _watch_rooms(is_over: Event) -> None:
    """Mark each room when its event comes."""
    with connect(settings().redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(settings().socketio_channel)
        while not is_over.is_set():
            if event := channel.get_message(timeout=1):
                data = json.loads(event["data"])["data"][0]
                if "room_id" in data:
                    marks.mark("rooms", int(data["room_id"], 16))


def _consume(is_over: Event, port: int) -> None:
    """Receive messages over HTTP, mark and acknowledge them."""
    with closing(HTTPConnection(LOOPBACK, port, timeout=TIMEOUT)) as connection:
        while not is_over.is_set():
            status, message = _request(connection, "GET", RECEIVE, allowed=(HTTPStatus.OK, HTTPStatus.NOT_FOUND))
            if status == HTTPStatus.OK:
                marks.mark("messages", message["payload"]["number"])
                lock = {"id": message["id"], "lock_token": message["lock_token"]}
                _request(connection, "POST", "/api/queue/ack", lock)


def _follow(is_over: Event, port: int, path: str) -> None:
    """Read a stream of events, as an open page does."""
    while not is_over.is_set():
        with suppress(OSError, HTTPException):  # it ended; a page connects again
            connection = HTTPConnection(LOOPBACK, port, timeout=1)
            connection.request("GET", path, headers={"Accept": "text/event-stream"})
            response = connection.getresponse()
            while not is_over.is_set() and response.read1(65_536):
                pass


def _request(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    *,
    allowed: Collection[int] = (HTTPStatus.OK, HTTPStatus.CREATED),
) -> tuple[int, Any]:
    """Send a request with a JSON body; return the status, and the response from JSON if it is JSON."""
    headers = {"Content-Type": "application/json"} if body is not None else {}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    text = response.read()
    if response.status not in allowed:
        raise WrongResult(f"{method} {path}: {response.status} {text[:500]!r}")
    return response.status, json.loads(text) if response.headers.get_content_type() == "application/json" else text


def _id(number: int) -> ObjectId:
    return ObjectId(f"{number:024x}")
