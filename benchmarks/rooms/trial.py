"""One run: rooms that fall due, the processes of one way, and what came of it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

from bson import ObjectId, Timestamp

from beat_schedule import SYSTEMS
from benchmarks.harness import Document, Way, WrongResult, end_leases, expect
from benchmarks.rooms.contenders import Contender
from benchmarks.rooms.listener import Listener
from benchmarks.rooms.processes import Cost, Running, cost, forget_peak, running
from benchmarks.snooze_scan import documents
from models import database, schema, support_room
from queue_manager.core.clock import hours, unix_ms
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from services.realtime import SERVER_KEY

WARM_UPS, WARM_UP, WARM_WITHIN = 4, 250, 60.0  # scans, rooms of each, seconds for each
PERIOD = 10.0  # seconds between two scans, as ours has it by default
SETTLE = 1.0  # seconds after rooms were written, which keep the servers busy for a while
TRIAL_TIMEOUT = 400.0  # seconds
UNTOUCHED = {"status": "snoozed", "snooze_time.time": {"$type": "date"}, "unsnoozed_at": None}

Moments = dict[str, float]
"""By room, in seconds of the epoch."""
Drive = Callable[[Running, Listener], tuple[float, Moments]]
"""Brings about that every room wakes that is to: returns when it began, and from when on each room was waited for."""
_channels = count(1)


@dataclass(frozen=True, kw_only=True)
class Woken:
    """What a run brought."""

    seconds: float
    """From the beginning to the last event."""
    waits: list[float]
    """How long each room was waited for, in seconds."""
    costs: dict[str, Cost]
    """By kind of process."""

    @property
    def processor_seconds(self) -> float:
        return sum(cost.seconds for cost in self.costs.values())


class Trial:
    """Rooms of which the first `due`, which `make` makes anew for every run, are woken by every way."""

    def __init__(
        self, *, rooms: int, due: int, make: Callable[[], Iterator[Document]], servers: dict[str, int]
    ) -> None:
        """`servers` are the servers' processes by name."""
        self.rooms, self.due = rooms, due
        self._make, self._servers = make, servers
        self._running = ExitStack()

    def way(self, contender: Contender, drive: Drive) -> Way:
        """Return the way that `drive` takes with the processes of a contender."""
        processes: list[Running] = []
        listeners: list[Listener] = []
        since: list[Timestamp] = []

        def prepare() -> None:
            self._running.close()
            support_room.rooms().drop_indexes()
            contender.migrate()
            self._remove()
            empty_redis()
            channel = f"events-{next(_channels)}"
            env = {**contender.env, "SOCKETIO_CHANNEL": channel}
            processes[:] = [self._running.enter_context(running(contender.workers, contender.sender, **env))]
            warm_up(processes[0])
            self.put_back()
            time.sleep(SETTLE)
            listeners[:] = [Listener(settings().redis_url, channel)]
            self._running.callback(listeners[0].close)
            for pid in self._servers.values():
                forget_peak(pid)
            since[:] = [last_write()]

        def run() -> Woken:
            pids = {**processes[0].pids, **{name: [pid] for name, pid in self._servers.items()}}
            before = {of: _sum_of(pids[of]) for of in pids}
            began, moments = drive(processes[0], listeners[0])
            gives_up_at = time.monotonic() + TRIAL_TIMEOUT
            while not listeners[0].wait(self.due, PERIOD):
                if time.monotonic() > gives_up_at:
                    raise WrongResult(f"{contender.name}: only {listeners[0].count:,} events of {self.due:,}")
                processes[0].sender.ask("scan")
            after = {of: _sum_of(pids[of]) for of in pids}
            return Woken(
                seconds=listeners[0].last_at - began,
                waits=list(_waits(moments)),
                costs={of: Cost(after[of].seconds - before[of].seconds, after[of].megabytes) for of in pids},
            )

        def check(woken: Woken) -> None:
            self._running.close()  # what the workers hold they end, and nothing is done afterwards
            due = {id_of(number) for number in range(self.due)}
            expect("rooms that were waited for", len(woken.waits), self.due)
            expect("rooms that are open", _opened(), due)
            untouched = support_room.rooms().count_documents(UNTOUCHED)
            expect("rooms that are snoozed as before", untouched, self.rooms - self.due)
            expect("events, one of each room", listeners[0].rooms(), Counter(map(str, due)))
            writes = wakings(since[0])
            expect("rooms written to", set(writes), due)
            expect("how often rooms were woken", set(writes.values()), {1})

        return Way(name=contender.name, run=run, check=check, prepare=prepare)

    def put_back(self) -> None:
        """Make the rooms that are to wake as they were, or as they are to be now."""
        self._remove()
        support_room.rooms().insert_many(self._make(), ordered=False)

    def _remove(self) -> None:
        support_room.rooms().delete_many({"_id": {"$lte": id_of(self.due - 1)}})

    def close(self) -> None:
        """Stop what still runs, and leave an empty collection behind, with our indexes."""
        self._running.close()
        support_room.rooms().drop()
        schema.migrate(SYSTEMS)


def empty_redis() -> None:
    end_leases()
    let_redis_be_known()


def let_redis_be_known() -> None:
    """Let Redis be known for an hour: for a server that is new, ours sends every event twice."""
    with connect(settings().redis_url) as client:
        since = unix_ms(datetime.now(UTC) - hours(1))
        client.set(SERVER_KEY, f"{client.info('server')['run_id']}:{since}")


def warm_up(running: Running) -> None:
    """Scan a few times, as programs do that have run for a while: they are connected, and know their queries."""
    rooms = support_room.rooms()
    for _ in range(WARM_UPS):
        some = documents(WARM_UP, WARM_UP, database.server_now())
        sent = rooms.insert_many({**room, "_id": ObjectId()} for room in some).inserted_ids
        running.sender.ask("scan")
        ends = time.monotonic() + WARM_WITHIN
        while rooms.find_one({"_id": {"$in": sent}, "status": "snoozed"}):
            if time.monotonic() > ends:
                raise WrongResult(f"rooms were not woken within {WARM_WITHIN:g} s")
            time.sleep(0.05)
        time.sleep(0.5)  # until the scan has ended, and what it dispatched
        rooms.delete_many({"_id": {"$in": sent}})


def id_of(number: int) -> ObjectId:
    return ObjectId(f"{number + 1:024x}")


def scan_once(running: Running, listener: Listener) -> tuple[float, Moments]:
    """Scan; all rooms are waited for from then on."""
    began = running.sender.ask("scan")
    return began, defaultdict(lambda: began)


def last_write() -> Timestamp:
    """Return the server's own time of its last write."""
    at: Timestamp = database.client().admin.command("hello")["lastWrite"]["opTime"]["ts"]
    return at


def wakings(since: Timestamp) -> Counter[Any]:
    """Return how often each room that was written to after `since` was woken, by the server's own record."""
    found: Counter[Any] = Counter()
    oplog = database.client().local["oplog.rs"].with_options(codec_options=support_room.rooms().codec_options)
    ns = support_room.rooms().full_name
    for entry in oplog.find({"ts": {"$gt": since}, "$or": [{"ns": ns}, {"o.applyOps.ns": ns}]}):
        for write in entry["o"].get("applyOps", [entry]):  # the writes of a transaction are one entry
            if write["ns"] == ns:
                room = write["o2"]["_id"] if write["op"] == "u" else write["o"]["_id"]
                found[room] += len(list(_dates(write["o"], "unsnoozed_at")))
    return found


def _opened() -> set[Any]:
    opened = support_room.rooms().find({"status": "open", "snooze_time": None}, {"_id": 1})
    return {room["_id"] for room in opened}


def _waits(moments: Moments) -> Iterator[float]:
    for room in support_room.rooms().find({"status": "open"}, {"unsnoozed_at": 1}):
        yield room["unsnoozed_at"].timestamp() - moments[str(room["_id"])]


def _sum_of(pids: Sequence[int]) -> Cost:
    """Return what processes have cost together."""
    costs = [cost(pid) for pid in pids]
    return Cost(sum(of.seconds for of in costs), sum(of.megabytes for of in costs))


def _dates(document: Any, key: str) -> Iterator[datetime]:
    if isinstance(document, dict):
        if isinstance(document.get(key), datetime):
            yield document[key]
        for value in document.values():
            yield from _dates(value, key)
