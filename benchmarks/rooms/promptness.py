"""Single rooms: one message to idle workers, and rooms whose time comes between two scans."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice

from benchmarks.harness import Bench, Document, Figure, Result, WrongResult
from benchmarks.rooms.contenders import first, ours
from benchmarks.rooms.listener import Listener
from benchmarks.rooms.processes import Running
from benchmarks.rooms.trial import PERIOD, Drive, Moments, Trial, id_of, scan_once
from benchmarks.rooms.waking import wait
from benchmarks.snooze_scan import documents
from dev.children import spawn
from models import database, support_room
from queue_manager.core.clock import seconds

ROOMS = 1_000
ONE_BY_ONE = 20
IDLE = 0.2  # seconds between two of them
AHEAD = 200
FIRST_DUE, LAST_DUE = 1.5, 9.5  # seconds from the first scan
EVENT_TIMEOUT = 30.0  # seconds


def idle(bench: Bench, *, servers: dict[str, int]) -> Result:
    """Measure how long one message takes that nothing is in the way of."""

    def due() -> Iterator[Document]:
        return islice(documents(ROOMS, ONE_BY_ONE, database.server_now()), ONE_BY_ONE)

    return _compare(
        bench,
        Trial(rooms=ROOMS, due=ONE_BY_ONE, make=due, servers=servers),
        _one_by_one,
        title="rooms woken, one by one",
        data=f"{ONE_BY_ONE} rooms, each sent by `.delay()` to idle workers when the one before was heard of",
        compared="p50, ms",
        notes=["From before `.delay()` to `unsnoozed_at`."],
    )


def ahead(bench: Bench, *, servers: dict[str, int]) -> Result:
    """Measure how late rooms wake whose time comes between two scans."""
    return _ahead(bench, servers, "rooms woken at their time", nullcontext())


def ahead_on_a_busy_machine(bench: Bench, *, servers: dict[str, int]) -> Result:
    """Measure the same next to a program that uses a processor all the time."""
    return _ahead(bench, servers, "rooms woken at their time, next to a busy loop", _busy_loop())


@contextmanager
def _busy_loop() -> Iterator[None]:
    child = spawn([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        child.kill()


def _ahead(bench: Bench, servers: dict[str, int], title: str, disturbed: AbstractContextManager[None]) -> Result:
    def soon() -> Iterator[Document]:
        now = database.server_now()
        for number in range(AHEAD):
            due_at = now + seconds(FIRST_DUE + (LAST_DUE - FIRST_DUE) * number / AHEAD)
            yield {
                "_id": id_of(number),
                "account_id": id_of(number % 500),
                "status": "snoozed",
                "snooze_time": {"time": due_at, "set_by": id_of(0), "set_at": now},
            }

    trial = Trial(rooms=ROOMS, due=AHEAD, make=soon, servers=servers)

    def scan_twice(running: Running, listener: Listener) -> tuple[float, Moments]:
        trial.put_back()
        moments = {
            str(room["_id"]): room["snooze_time"]["time"].timestamp()
            for room in support_room.rooms().find({"_id": {"$lte": id_of(AHEAD - 1)}}, {"snooze_time": 1})
        }
        began, _ = scan_once(running, listener)
        time.sleep(PERIOD - (time.time() - began))
        scan_once(running, listener)
        return began, moments

    with disturbed:
        return _compare(
            bench,
            trial,
            scan_twice,
            title=title,
            data=f"{AHEAD} rooms whose time comes between two scans, {PERIOD:g} s apart",
            compared="p99, ms",
            notes=[
                "How late `unsnoozed_at` is. Ours sends them ahead with their time; the other finds them by its scan."
            ],
        )


def _one_by_one(running: Running, listener: Listener) -> tuple[float, Moments]:
    moments: Moments = {}
    for number in range(ONE_BY_ONE):
        time.sleep(IDLE)
        room = str(id_of(number))
        moments[room] = running.sender.ask(room)
        if not listener.wait(number + 1, EVENT_TIMEOUT):
            raise WrongResult(f"no event of a room within {EVENT_TIMEOUT:g} s")
    return min(moments.values()), moments


def _compare(
    bench: Bench, trial: Trial, drive: Drive, *, title: str, data: str, compared: str, notes: list[str]
) -> Result:
    bench.fill(support_room.rooms(), documents(ROOMS, 0, database.server_now()), ROOMS)
    figures = [Figure(heading=f"p{n}, ms", of=lambda run, n=n: wait(run, n)) for n in (50, 99)]  # type: ignore[misc]
    try:
        return bench.compare(
            title,
            data,
            [trial.way(contender, drive) for contender in (ours(), first())],
            figures=sorted(figures, key=lambda figure: figure.heading != compared),
            rounds=1 if bench.is_quick else 3,
            notes=notes,
            warm_up=False,
        )
    finally:
        trial.close()
