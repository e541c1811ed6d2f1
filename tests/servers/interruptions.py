"""Continuous work of each kind, and the longest time in which a kind of it did not succeed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from threading import Event
from typing import Any

from bson import ObjectId
from pymongo.errors import PyMongoError
from redis.exceptions import RedisError

from models.database import server_now
from queue_manager.core.background import in_thread
from tests.e2e.job_processes import job_lab, notes
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.rooms import make_room
from tests.servers.everything import Processes
from tests.web.credentials import OPERATOR
from tests.web.listener import ConnectionRefused, Listener

OUTAGES = (
    PyMongoError,
    RedisError,
    OSError,
    ConnectionRefused,
    AssertionError,
)  # the last one: not within the time of `eventually`
FOLLOWS_WITHIN = 10.0
"""Seconds from the election of a new primary, as the server shows it, until each kind of work succeeds again.

They do not include the time until the servers noticed the fault and agreed on a new primary.
"""
KINDS = ("rooms", "events", "jobs", "messages", "readiness")


class Load:
    """Rooms that wake, jobs that run, messages that pass, and questions to the web process, one after another each."""

    def __init__(self, running: Processes) -> None:
        self._running, self._lab, self.account = running, job_lab(), ObjectId()
        self.rooms: list[ObjectId] = []
        self.heard: set[str] = set()
        self._client: Listener | None = None
        self._successes: dict[str, list[float]] = defaultdict(list)

    def longest_gap(self, kind: str, since: float) -> float:
        """Return the longest time between two successes, the first of which may be the last one before `since`."""
        done = self._successes[kind]
        first = max(0, sum(at < since for at in done) - 1)
        return max(after - before for before, after in pairwise(done[first:]))

    def first_success(self, kind: str, since: float) -> float | None:
        """Return after how many seconds it succeeded for the first time."""
        return next((at - since for at in self._successes[kind] if at >= since), None)

    def succeeded(self, kind: str, since: float) -> int:
        return sum(at >= since for at in self._successes[kind])

    def repeat(self, kind: str, act: Callable[[], object], is_over: Event) -> None:
        """Do it again and again; an outage counts as not done yet."""
        while not is_over.wait(0.05):
            with suppress(*OUTAGES):
                act()
                self._successes[kind].append(time.monotonic())

    def require_events(self, rooms: Sequence[ObjectId]) -> bool:
        """Raise AssertionError unless the event of each of these rooms was received."""
        assert {*map(str, rooms)} - self.heard == set()
        return True

    def room(self) -> None:
        room = make_room(server_now(), account_id=self.account)
        self.rooms.append(room)
        eventually(lambda: is_open(room), within=120)

    def job(self) -> None:
        id = self._lab.run("now")
        eventually(lambda: [one for one in notes("now") if str(one["job"]) == id], within=120)

    def event(self) -> None:
        """Receive an event; a client that was disconnected connects again, as those of browsers do."""
        if self._client is None:
            self._client = Listener(self._running.web.port, {"token": OPERATOR})
            self._client.call("join", str(self.account))
        try:
            _, data = self._client.next_event()
        except TimeoutError:
            raise
        except (OSError, ConnectionRefused):
            self.disconnect()
            raise
        self.heard.add(data["room_id"])

    def disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def message(self) -> None:
        assert self._running.add_message() == 201
        message = self._running.take()
        assert message is not None
        assert "lock_token" in message
        assert self._running.acknowledge(message) == 200

    def readiness(self) -> None:
        assert self._running.web.get("/readyz").status == 200


@contextmanager
def under_load(running: Processes) -> Iterator[Load]:
    """Run the load while the block runs, from when each kind of it has succeeded twice."""
    load = Load(running)
    with ExitStack() as stack:
        stack.callback(load.disconnect)
        acts: dict[str, Callable[[], Any]] = {
            "rooms": load.room,
            "events": load.event,
            "jobs": load.job,
            "messages": load.message,
            "readiness": load.readiness,
        }
        for kind in KINDS:
            stack.enter_context(in_thread(partial(load.repeat, kind, acts[kind]), name=kind))
        eventually(lambda: all(load.succeeded(kind, 0) >= 2 for kind in KINDS))
        yield load
