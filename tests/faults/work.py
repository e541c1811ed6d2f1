"""The work of one schedule: rooms, messages and jobs; and the observations of it."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPException
from threading import Event
from typing import Any
from urllib.parse import quote

from bson import ObjectId
from pymongo.errors import BulkWriteError, PyMongoError

from dev.processes import started_at
from models import job, outbox
from models.database import Document, client, collection
from models.support_room import rooms
from queue_manager.core.background import in_thread
from queue_manager.core.clock import hours, seconds
from queue_manager.core.errors import Contended
from services.job_queues.jobs import jobs
from tests.e2e.watching import RoomWrite, room_writes
from tests.faults import notes
from tests.faults.app import poison_id
from tests.faults.history import Ack, Delivery, History, JobRecord, JobRun, Probe, RoomChange, Sent
from tests.faults.job_works import NAMES
from tests.faults.world import World, call

Producer = Callable[[float, random.Random], None]

SPAN = 8.0  # seconds in which work falls due
ROOMS, RESNOOZES, MESSAGES, JOBS = 120, 40, 70, 48
ROOM_INSTANTS = 16  # rooms of one instant share a batch
CONSUMERS = 4
ACK_TIMEOUT, MAX_ATTEMPTS = 2, 5
NACKED, ABANDONED, LATE = 0.1, 0.1, 0.05  # shares of the deliveries
REJECTED = 0.04  # share of the messages that no consumer accepts
LONG_JOBS, LONG_JOB = 0.15, 1.2  # their share, and how many seconds they take at most
RETRY_DELAY, PROBE_INTERVAL, POLL_INTERVAL = 0.2, 0.4, 0.1  # seconds
ALLOWED_ERROR = 503
WEB_TIMEOUT = 4.0  # seconds
POISON_JOB = "exit"
NOT_NOW = (OSError, HTTPException)


@dataclass
class Work:
    """The work of the schedule `seed`."""

    world: World
    seed: int
    poison: list[str]
    """What each poison room does."""
    poison_jobs: int

    def __post_init__(self) -> None:
        self.history = History()
        self._chance = random.Random(f"work {self.seed}")
        self._since = client().local["oplog.rs"].find_one(sort=[("$natural", -1)])["ts"]  # type: ignore[index]
        self._due_at: dict[ObjectId, datetime] = {}

    @contextmanager
    def production(self) -> Iterator[None]:
        """Add work while the block runs, and until all is added."""
        began = time.monotonic()
        self._add_rooms()
        with ExitStack() as stack:
            for produce in (self._snooze_again, self._send_messages, self._add_jobs):
                plan = random.Random(self._chance.random())
                stack.enter_context(in_thread(_until_done(produce, began, plan), name=produce.__name__))
            yield

    @contextmanager
    def consumers(self) -> Iterator[None]:
        """Consume messages and ask for /readyz while the block runs."""
        with ExitStack() as stack:
            for number in range(CONSUMERS):
                plan = random.Random(self._chance.random())
                stack.enter_context(in_thread(partial(self._consume, chance=plan), name=f"consumer{number}"))
            for port in self.world.web_ports.values():
                stack.enter_context(in_thread(partial(self._probe, port=port), name="probe"))
            yield

    # Rooms

    def _add_rooms(self) -> None:
        now = datetime.now(UTC)
        instants = [now + seconds(self._chance.uniform(0.3, SPAN)) for _ in range(ROOM_INSTANTS)]
        poison = {poison_id(does, self.seed * 10 + number) for number, does in enumerate(self.poison)}
        ids = [ObjectId(f"{self.seed % 2**32:08x}{number:016x}") for number in range(ROOMS)]
        self._due_at = {id: self._chance.choice(instants) for id in [*ids, *poison]}
        self.history.poison = {str(id) for id in poison}
        rooms().insert_many(_room(id, due) for id, due in self._due_at.items())

    def _snooze_again(self, began: float, chance: random.Random) -> None:
        """Do what an agent does: snooze rooms again, some while they are being opened."""
        ordinary = [id for id in self._due_at if str(id) not in self.history.poison]
        wall = datetime.now(UTC).timestamp() - time.monotonic()
        again = [(self._due_at[id].timestamp() - wall + chance.gauss(0.05, 0.4), id) for id in ordinary]
        for at, id in sorted(chance.sample(again, RESNOOZES)):
            _sleep_until(at)
            until = datetime.now(UTC) + seconds(chance.uniform(0.3, 2))
            update = {"$set": {"snooze_time": {"time": until, "set_at": until}, "status": "snoozed"}}
            _insist(partial(rooms().update_one, {"_id": id}, update))

    def remove_poison(self) -> None:
        ids = [ObjectId(id) for id in self.history.poison]
        _insist(lambda: rooms().delete_many({"_id": {"$in": ids}}))

    # Messages

    def _send_messages(self, began: float, chance: random.Random) -> None:
        for number in range(MESSAGES):
            _sleep_until(began + SPAN * number / MESSAGES)
            id, first = f"{self.seed}-{number}", time.monotonic()
            kind = "rejected" if chance.random() < REJECTED else "mail"
            body = {"type": kind, "id": id, "payload": {"number": number}, "priority": chance.randrange(10)}
            body |= {"ackTimeout": ACK_TIMEOUT, "maxAttempts": MAX_ATTEMPTS}
            while self._ask(chance, "POST", "/api/queue/message", body)[0] != 201:
                time.sleep(RETRY_DELAY)
            self.history.sent.append(Sent(message=id, began=first, accepted=time.monotonic()))

    def _consume(self, is_over: Event, chance: random.Random) -> None:
        """Receive messages, and acknowledge most of them at once."""
        while not is_over.is_set():
            asked = time.monotonic()
            status, text = self._ask(chance, "GET", "/api/queue/message?timeout=1")
            if status != 200:
                is_over.wait(0 if status == 404 else RETRY_DELAY)
                continue
            message = json.loads(text)
            id, token = message["id"], message["lock_token"]
            delivery = Delivery(message=id, token=token, asked=asked, at=time.monotonic())
            self.history.deliveries.append(delivery)
            fate = chance.random()
            if message["type"] == "rejected" or fate < NACKED:
                self._ask(chance, "POST", f"/api/queue/message/{quote(id)}/nack", {"lock_token": token})
            elif fate >= NACKED + ABANDONED:  # the others are never heard of again
                is_late = fate > 1 - LATE
                is_over.wait(ACK_TIMEOUT if is_late else chance.uniform(0, 0.1))
                self._acknowledge(id, token, chance)

    def _acknowledge(self, id: str, token: str, chance: random.Random) -> None:
        """Acknowledge a message, as often as is needed to get an answer."""
        is_sure = True
        for _ in range(50):
            status, _ = self._ask(chance, "POST", "/api/queue/ack", {"id": id, "lock_token": token})
            if status in (200, 404, 409):
                outcome = "done" if status == 200 else "refused" if is_sure else "unknown"
                self.history.acks.append(Ack(message=id, token=token, at=time.monotonic(), outcome=outcome))
                return
            is_sure = False
            time.sleep(RETRY_DELAY)

    def _probe(self, is_over: Event, port: int) -> None:
        while not is_over.wait(PROBE_INTERVAL):
            with suppress(*NOT_NOW):
                status, text = call(port, "GET", "/readyz", timeout=WEB_TIMEOUT)
                self.history.probes.append(Probe(at=time.monotonic(), status=status, text=text))
                self._note_error("GET /readyz", status, text)

    def _ask(self, chance: random.Random, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Return status and text of an answer by one of the web processes; 0 if there is none."""
        port = chance.choice(list(self.world.web_ports.values()))
        try:
            status, text = call(port, method, path, body, timeout=WEB_TIMEOUT)
        except NOT_NOW:
            return 0, ""
        self._note_error(f"{method} {path}", status, text)
        return status, text

    def _note_error(self, request: str, status: int, text: str) -> None:
        if status >= 500 and status != ALLOWED_ERROR:
            self.history.errors.append(f"{request}: {status} {text[:200]}")

    # Jobs

    def _add_jobs(self, began: float, chance: random.Random) -> None:
        poison = set(chance.sample(range(JOBS // 2), self.poison_jobs))
        for number in range(JOBS):
            _sleep_until(began + SPAN * 0.8 * number / JOBS)
            took = chance.uniform(0.2, LONG_JOB) if chance.random() < LONG_JOBS else chance.choice([0, 0, 0.02])
            arguments = [self.seed, number, round(took, 2), *([POISON_JOB] if number in poison else [])]
            name, delay = chance.choice(NAMES), seconds(chance.uniform(0, SPAN * 0.2))
            _insist(partial(jobs.run, name, *arguments, delay=delay, unique=True))

    # Whether it is done

    def is_done(self, kind: str) -> bool:
        checks: dict[str, Callable[[], bool]] = {
            "rooms": lambda: self._count_snoozed() == 0,
            # Those that are postponed were sent, and are sent again to servers that are still subscribing.
            "events": lambda: collection(outbox.OUTBOX_COLLECTION).count_documents({"postponed_until": None}) == 0,
            "messages": self._are_messages_done,
            "jobs": lambda: job.jobs().count_documents({**self._of_schedule, "state": {"$ne": "success"}}) == 0,
        }
        try:
            return checks[kind]()
        except (PyMongoError, *NOT_NOW):
            return False

    def _count_snoozed(self) -> int:
        ordinary = [id for id in self._due_at if str(id) not in self.history.poison]
        return rooms().count_documents({"_id": {"$in": ordinary}, "snooze_time": {"$exists": True}})

    def _are_messages_done(self) -> bool:
        status, text = self._ask(random.Random(), "GET", "/api/queue/status")
        found = json.loads(text) if status == 200 else {"main": 1}
        return found["main"] == 0 and found["processing"] == 0

    @property
    def _of_schedule(self) -> Document:
        return {"name": {"$in": list(NAMES)}, "arguments.0": self.seed}

    def hanging(self) -> set[str]:
        """Return the poison rooms whose first attempt goes on, and keeps other rooms of its batch waiting."""
        first: dict[str, dict[str, Any]] = {}
        lines = notes.read(self.world.poison_log)
        for line in lines:
            first.setdefault(line["room"], line)
        returned = {line["pid"] for line in lines if line["what"] == "end"}
        return {
            room
            for room, line in first.items()
            if line["others"] and line["pid"] not in returned and started_at(line["pid"]) is not None
        }

    # What happened

    def collect(self) -> History:
        """Read what the servers know of the schedule, when everything is done."""
        history = self.history
        ids = {str(id) for id in self._due_at}
        history.rooms = [_change(write) for write in room_writes({}, since=self._since) if str(write.room_id) in ids]
        history.events = [event for event in self.world.events() if event.room in ids]
        acknowledged = {ack.message for ack in history.acks if ack.outcome == "done"}
        for sent in history.sent:
            state = self._state_of(sent.message)
            if state is not None or sent.message not in acknowledged:
                history.states[sent.message] = state
        history.runs = _job_runs(notes.read(self.world.job_log))
        for one in job.jobs().find(self._of_schedule):
            successes = sum(entry["state"] == "success" for entry in one["history"])
            record = JobRecord(name=one["name"], job=str(one["_id"]), state=one["state"], successes=successes)
            history.jobs.append(record)
        history.losses = list(self.world.losses)
        return history

    def _state_of(self, id: str) -> str | None:
        chance = random.Random()
        while True:
            status, text = self._ask(chance, "GET", f"/api/queue/message/{id}")
            if status in (200, 404):
                return str(json.loads(text)["state"]) if status == 200 else None
            time.sleep(RETRY_DELAY)

    def clear(self) -> None:
        """Delete what would be in the way of later schedules."""
        _insist(lambda: rooms().delete_many({"_id": {"$in": list(self._due_at)}}))
        _insist(lambda: job.jobs().delete_many(self._of_schedule))
        self._ask(random.Random(), "DELETE", "/api/queue/dead/clear")


def _room(id: ObjectId, due: datetime) -> Document:
    snooze = {"time": due, "set_at": due - hours(1)}
    return {"_id": id, "account_id": ObjectId(), "status": "snoozed", "snooze_time": snooze}


def _change(write: RoomWrite) -> RoomChange:
    due, woken = write.values("time"), write.values("unsnoozed_at")
    return RoomChange(
        room=str(write.room_id), at=write.at, due=due[0] if due else None, woken=woken[0] if woken else None
    )


def _job_runs(lines: list[dict[str, Any]]) -> list[JobRun]:
    """Return the runs by what they wrote, of which the beginning may have been deleted with an earlier schedule."""
    found: dict[tuple[str, int], dict[str, Any]] = defaultdict(dict)
    for line in lines:
        found[line["job"], line["attempt"]] |= {line["what"]: line["at"], "name": line["name"], "pid": line["pid"]}
    return [
        JobRun(name=run["name"], job=id, pid=run["pid"], began=run["begin"], ended=run.get("end"))
        for (id, _), run in found.items()
        if "begin" in run
    ]


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


def _until_done(produce: Producer, began: float, chance: random.Random) -> Callable[[Event], None]:
    return lambda _: produce(began, chance)


def _insist(act: Callable[[], object]) -> None:
    """Repeat a write until it is acknowledged. Each of them may be repeated."""
    while True:
        try:
            act()
            return
        except (PyMongoError, Contended) as error:
            if isinstance(error, BulkWriteError):
                raise
            time.sleep(RETRY_DELAY)
