"""A worker killed with SIGKILL at each step, and an agent who snoozes again at each step: with real processes."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from models import outbox, scan_run
from models.database import collection, server_now
from queue_manager.core.clock import seconds, to_iso
from tasks.support_snooze import unsnooze_room
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.watching import Heard, is_open, listening, send_scan, times_woken, woken
from tests.eventually import eventually
from tests.pace import paced, promptly
from tests.real_servers import Servers
from tests.room_lease import lease
from tests.rooms import get_room, make_room, resnooze

pytestmark = pytest.mark.crash

LEASE, PERIOD = 2.0, 0.5
ENV = {"QM_LEASE_SECONDS": str(LEASE), "QM_SNOOZE_SCAN_SECONDS": str(PERIOD), "RESUBSCRIBE_SECONDS": "0"}
STEPS = ["taken", "published", "written", "attempt"]


@pytest.fixture
def heard(clean: Servers) -> Iterator[Heard]:
    with listening(clean.valkey.url) as heard:
        yield heard


@pytest.fixture
def ticking(clean: Servers) -> Iterator[None]:
    """Scans are sent in every period, as beat does."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(PERIOD):
            send_scan()

    thread = threading.Thread(target=tick)
    thread.start()
    yield
    over.set()
    thread.join()


def crashing(tmp_path: Path, step: str, *actions: str, **env: str) -> CeleryProcess:
    crash = {"CRASH_AT": step, "CRASH_DO": ",".join(actions), "CRASH_MARK": str(tmp_path / "happened")}
    return worker(tmp_path / "worker.log", app="tests.e2e.crash_app", env={**ENV, **crash, **env})


@pytest.mark.smoke
@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("step", STEPS)
def test_room_wakes_once_although_the_worker_is_killed(step: str, tmp_path: Path, heard: Heard) -> None:
    due_at = server_now() - seconds(1)
    room = make_room(due_at)
    process = crashing(tmp_path, step, "kill")
    with process.start(ready=False):
        eventually(lambda: not process.is_alive())
        assert (tmp_path / "happened").exists(), process.log

        process.start()

        # Within one lease and one period; the room of the last step is open already. The rest is for a slow machine.
        with promptly(LEASE + PERIOD + 10):
            eventually(lambda: is_open(room))
        eventually(lambda: heard.of(room))
    (woken_at,) = times_woken(room)
    assert woken_at >= due_at
    assert {event["timestamp"] for event in heard.of(room)} == {to_iso(woken_at)}


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("actions", [("resnooze",), ("resnooze", "kill")], ids="+".join)
@pytest.mark.parametrize("step", STEPS)
def test_new_snooze_survives_and_ends_at_its_own_time(
    step: str, actions: tuple[str, ...], tmp_path: Path, heard: Heard
) -> None:
    room = make_room(server_now() - seconds(1))
    process = crashing(tmp_path, step, *actions, RESNOOZE_SECONDS="4")
    with process.start(ready=False):
        eventually((tmp_path / "happened").exists)
        new_end = get_room(room)["snooze_time"]["time"]
        if "kill" in actions:
            eventually(lambda: not process.is_alive())
            process.start()

        eventually(lambda: is_open(room), within=4 + LEASE + PERIOD + 10)
        eventually(lambda: heard.of(room))
    *earlier, last = times_woken(room)
    assert last >= new_end
    assert len(earlier) == (1 if step == "written" else 0)


def test_event_of_a_batched_room_is_sent_although_it_is_snoozed_again(tmp_path: Path, heard: Heard) -> None:
    rooms = [make_room(server_now() - seconds(1)) for _ in range(8)]
    with crashing(tmp_path, "written", "resnooze", RESNOOZE_SECONDS="3600"):
        send_scan()
        eventually((tmp_path / "happened").exists)
        eventually(lambda: all(len(times_woken(room)) == 1 for room in rooms))
        eventually(lambda: all(heard.of(room) for room in rooms))
    assert [is_open(room) for room in rooms].count(False) == 1
    for room in rooms:
        assert {event["timestamp"] for event in heard.of(room)} == {to_iso(at) for at in times_woken(room)}


@pytest.mark.parametrize("is_snoozed_again", [False, True])
def test_event_of_a_room_is_sent_after_a_first_failure(
    is_snoozed_again: bool, tmp_path: Path, heard: Heard, clean: Servers
) -> None:
    rooms = [make_room(server_now() - seconds(1)) for _ in range(3)]
    process = crashing(tmp_path, "written", "fail")
    with redis.Redis.from_url(clean.valkey.url) as client, process:
        unsnooze_room.delay(str(rooms[0]))
        send_scan()
        eventually(lambda: all(map(is_open, rooms)))
        eventually(lambda: collection(outbox.OUTBOX_COLLECTION).count_documents({}) > 0)

        def scanned() -> bool:
            send_scan()
            return True

        eventually(lambda: scanned() and "`after` failed" in process.log, every=PERIOD)
        until = server_now() + seconds(3600)
        for room in rooms if is_snoozed_again else []:
            resnooze(room, until)
        assert [heard.of(room) for room in rooms] == [[], [], []]
        (tmp_path / "happened").touch()

        eventually(lambda: scanned() and all(heard.of(room) for room in rooms), every=PERIOD)
        eventually(lambda: collection(outbox.OUTBOX_COLLECTION).count_documents({}) == 0)
        eventually(lambda: client.hlen("qm:unacked") == 0)
        assert client.llen("qm:dead-letters") == 0
    for room in rooms:
        assert {event["timestamp"] for event in heard.of(room)} == {to_iso(at) for at in times_woken(room)}
        assert is_open(room) is not is_snoozed_again


@pytest.mark.usefixtures("ticking")
def test_room_wakes_although_its_worker_is_killed_during_the_backoff(tmp_path: Path, heard: Heard) -> None:
    room = make_room(server_now() - seconds(1))
    process = crashing(tmp_path, "attempt", "fail")
    with process:
        eventually(lambda: "Retry in 4.0s" in process.log)
        process.kill()
        held_until = lease(room).ends_at
        assert held_until is not None
        (tmp_path / "happened").touch()

        with paced() as pace:
            process.start()
            eventually(lambda: is_open(room))
        eventually(lambda: heard.of(room))
    (woken_at,) = times_woken(room)
    assert woken_at < held_until + seconds(LEASE + PERIOD + pace.allowed(5))


@pytest.mark.smoke
@pytest.mark.usefixtures("ticking", "heard")
def test_worker_slower_than_the_lease_wakes_each_room_once(tmp_path: Path) -> None:
    lease = 8.0  # seconds, so that a stall of a busy machine does not end it
    env = {"QM_LEASE_SECONDS": str(lease)}
    rooms = [make_room(server_now() - seconds(1)) for _ in range(12)]
    process = crashing(tmp_path, "attempt", "slow", SLOW_SECONDS=str(lease + 2), **env)
    # Another worker scans while all processes of the slow one are busy.
    scanner = worker(tmp_path / "scans.log", "--queues", "scans", "--hostname", "scans@%h", env={**ENV, **env})
    with process, scanner:
        eventually(lambda: all(is_open(room) for room in rooms), within=120)
        eventually(lambda: "A batch of tasks ended" in process.log)
        assert min(map(float, re.findall(r"A batch of tasks ended .* seconds=(\S+)", process.log))) > lease
    runs = scan_run.latest("tasks.support_snooze.scan_expired_snoozes", limit=1000)
    assert sum(run.enqueued for run in runs) == len(rooms)
    assert [len(moments) for moments in woken(rooms)] == [1] * len(rooms)
