"""Beats and workers whose clocks are an hour wrong work like all others."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import redis
from celery import Celery

from models import scan_run
from models.database import server_now
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.beat.status import leadership
from queue_manager.core.clock import seconds
from services.message_queue import message_queue, queue_admin
from tasks.job_queues import dispatch_due_jobs
from tasks.overdue_messages import schedule_sweep
from tasks.support_snooze import scan_expired_snoozes
from tests.e2e.celery_processes import QUICK_START, ROOT, TESTS, CeleryProcess, worker
from tests.e2e.job_processes import count, job_lab, job_worker, notes
from tests.e2e.watching import is_open, times_woken
from tests.eventually import eventually
from tests.pace import paced
from tests.real_servers import Servers
from tests.rooms import get_room, make_room
from tests.web.web_process import SNOOZE, web

pytestmark = pytest.mark.crash

HOUR = 3600
SCAN = "tasks.support_snooze.scan_expired_snoozes"
ENV = {"QM_SNOOZE_SCAN_SECONDS": "1", "QM_LEASE_SECONDS": "5"}


def off_by(shift: float) -> Mapping[str, str]:
    """Return the environment of a process whose clock is off by so many seconds."""
    path = f"{TESTS / 'shifted_clock'}:{ROOT}"
    return {**ENV, "PYTHONPATH": path, "SHIFTED_CLOCK_SECONDS": str(shift)}


def beat(directory: Path, name: str, shift: float) -> CeleryProcess:
    return CeleryProcess(directory / f"{name}.log", "beat", env=off_by(shift))


def runs() -> int:
    return len(scan_run.latest(SCAN, limit=1000))


@pytest.mark.parametrize("shift", [-HOUR, HOUR])
def test_rooms_wake_with_a_wrong_clock_of_beat(shift: int, clean: Servers, tmp_path: Path) -> None:
    rooms = [make_room(server_now() + seconds(due)) for due in (-1, 2, 8)]
    due_at = {room: get_room(room)["snooze_time"]["time"] for room in rooms}
    with worker(tmp_path / "worker.log", env=ENV), beat(tmp_path, "beat", shift):
        eventually(lambda: all(is_open(room) for room in rooms))
        before = runs()
        eventually(lambda: runs() >= before + 3)
    assert all(times_woken(room)[0] >= due_at[room] for room in rooms)


@pytest.mark.parametrize("shift", [-HOUR, HOUR])
def test_rooms_wake_with_a_wrong_clock_of_the_worker(shift: int, clean: Servers, tmp_path: Path) -> None:
    rooms = [make_room(server_now() + seconds(due)) for due in (-1, 2, 8)]
    due_at = {room: get_room(room)["snooze_time"]["time"] for room in rooms}
    with worker(tmp_path / "worker.log", env=off_by(shift)) as off, beat(tmp_path, "beat", 0):
        eventually(lambda: all(is_open(room) for room in rooms))
        assert "differs from the database server's" in off.log
    assert all(times_woken(room)[0] >= due_at[room] for room in rooms)


@pytest.mark.parametrize("pool", ["prefork", "threads"])  # with batches, and without
@pytest.mark.parametrize("shift", [-HOUR, HOUR])
def test_room_dispatched_ahead_wakes_on_time_with_a_wrong_clock_of_the_worker(
    shift: int, pool: str, clean: Servers, tmp_path: Path
) -> None:
    with worker(tmp_path / "worker.log", "--pool", pool, env=off_by(shift)):
        rooms = [make_room(server_now() + seconds(due)) for due in (3, 5, 5, 7)]
        due_at = {room: get_room(room)["snooze_time"]["time"] for room in rooms}
        assert scan_expired_snoozes()["enqueued"] == len(rooms)  # no other scan follows
        with paced() as pace:
            eventually(lambda: all(is_open(room) for room in rooms), within=100)
    late = [times_woken(room)[0] - due_at[room] for room in rooms]
    assert min(late) >= seconds(0)
    assert max(late) < seconds(pace.allowed(3))


def test_retries_wait_for_their_backoff_with_any_clocks_of_the_workers(clean: Servers, tmp_path: Path) -> None:
    one_by_one = ("--prefetch-multiplier", "1")  # so that both take some, also of what the other sends
    with (
        worker(tmp_path / "behind.log", *one_by_one, app="tests.e2e.fourth_try_app", env=off_by(-HOUR)) as behind,
        worker(tmp_path / "ahead.log", *one_by_one, app="tests.e2e.fourth_try_app", env=off_by(HOUR)) as ahead,
    ):
        rooms = [make_room(server_now()) for _ in range(20)]
        sent_at = server_now()
        assert scan_expired_snoozes()["enqueued"] == len(rooms)
        with paced() as pace:
            eventually(lambda: all(is_open(room) for room in rooms), within=90)
        assert "retry:" in behind.log
        assert "retry:" in ahead.log
    waits = [times_woken(room)[0] - sent_at for room in rooms]
    assert min(waits) >= seconds(1 + 2 + 4)
    assert max(waits) < seconds(1 + 2 + 4 + pace.allowed(8))


@pytest.mark.parametrize("shift", [-HOUR, HOUR])
def test_triggered_scan_runs_with_a_wrong_clock_of_the_worker(shift: int, clean: Servers, tmp_path: Path) -> None:
    with worker(tmp_path / "worker.log", env=off_by(shift)), web(tmp_path, QM_HOOKS="true") as the_web:
        room = make_room(server_now() - seconds(1))
        assert the_web.post(SNOOZE).status == 202
        eventually(lambda: is_open(room))


@pytest.mark.parametrize("shift", [-HOUR, HOUR])
def test_messages_are_requeued_at_their_deadlines_with_a_wrong_clock_of_the_worker(
    shift: int, clean: Servers, tmp_path: Path
) -> None:
    queue = message_queue(schedule_sweep=schedule_sweep)
    env = {**off_by(shift), "QM_MESSAGE_QUEUE": "true"}
    with worker(tmp_path / "worker.log", env=env):
        deadlines = {}
        for timeout in (2, 3, 3, 4):  # before the next periodic sweep, which no beat sends
            queue.enqueue("job")
            held = queue.dequeue(ack_timeout=timeout)
            assert held is not None
            assert held.deadline_at is not None
            deadlines[held.id] = held.deadline_at
        eventually(lambda: queue_admin().counts().main == len(deadlines))
    with redis.Redis.from_url(clean.valkey.url) as client:
        events = [json.loads(fields[b"event"]) for _, fields in client.xrange("queue:events")]
    requeued_at = {id: one["timestamp"] for one in events if one["type"] == "requeue" for id in one["payload"]["ids"]}
    assert all(requeued_at[id] >= deadline * 1000 for id, deadline in deadlines.items())


@pytest.mark.parametrize("shift", [-HOUR, HOUR])
def test_jobs_start_on_time_with_a_wrong_clock_of_the_worker(shift: int, clean: Servers, tmp_path: Path) -> None:
    with job_worker(tmp_path, env={**off_by(shift), "JOBS_TIMER_MS": "5000"}):
        due_at = [server_now() + seconds(due) for due in (0, 2, 4)]
        for at in due_at:
            job_lab().run("now", at=at)
        assert dispatch_due_jobs()["enqueued"] == 1  # no other dispatch follows
        eventually(lambda: count("success", "now") == len(due_at))
    assert all(noted["began"] >= at for noted, at in zip(notes("now"), due_at, strict=True))


@pytest.mark.parametrize(("first", "second"), [(HOUR, 0), (0, HOUR), (-HOUR, 0)])
def test_beat_that_takes_over_continues_at_the_same_rate(
    first: int, second: int, clean: Servers, tmp_path: Path
) -> None:
    with (
        worker(tmp_path / "worker.log", env=ENV),
        beat(tmp_path, "first", first) as leader,
        redis.Redis.from_url(clean.valkey.url) as client,
    ):
        eventually(lambda: runs() >= 2)
        with beat(tmp_path, "second", second) as follower:
            leader.signal(signal.SIGKILL)
            eventually(lambda: (found := leadership(client, LEADER_LOCK)) and found.pid == follower.pid)
            before, sent = runs(), follower.log.count("sent support-snooze")
            eventually(lambda: runs() >= before + 3)
            started_at, sent = server_now(), follower.log.count("sent support-snooze")
            eventually(lambda: follower.log.count("sent support-snooze") >= sent + 5)
            more = follower.log.count("sent support-snooze") - sent
            took = (server_now() - started_at).total_seconds()
            assert more <= took + 1.5  # one a second, not continuously


def test_accumulated_ticks_cause_one_run(clean: Servers, tmp_path: Path) -> None:
    with beat(tmp_path, "beat", 0) as the_beat, redis.Redis.from_url(clean.valkey.url) as client:
        eventually(lambda: client.llen("scans") >= 8)
        the_beat.stop()  # nothing more is sent
        waiting = client.llen("scans")
        with CeleryProcess(tmp_path / "worker.log", "worker", "--queues", "scans", *QUICK_START, env=ENV):
            eventually(lambda: runs() == 1)
            eventually(lambda: client.hget("qm:totals:" + SCAN, "runs") == b"1")
            theirs = Celery(broker=clean.valkey.url, set_as_current=False)
            theirs.send_task(SCAN, queue="scans")  # by hand: always a run; it is behind every tick
            theirs.close()
            eventually(lambda: runs() == 2)
        assert waiting >= 8
        assert client.llen("scans") == 0
        assert runs() == 2


def test_expired_message_is_logged_as_a_warning(clean: Servers, tmp_path: Path) -> None:
    theirs = Celery(broker=clean.valkey.url, set_as_current=False)
    theirs.send_task(SCAN, queue="scans", expires=-5)
    theirs.close()
    with worker(tmp_path / "worker.log", env=ENV) as the_worker:
        eventually(lambda: "A message expired before a worker took it" in the_worker.log)
        eventually(lambda: SCAN in the_worker.log.split("A message expired", 1)[1])
        assert "AttributeError" not in the_worker.log
    assert runs() == 0
