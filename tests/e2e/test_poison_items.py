"""One room that kills or hangs every process that wakes it harms no other room: real workers, one batch of 201 rooms.

Leases last a minute, the default, unless a test sets them, so work that is done sooner did not wait for them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from bson import ObjectId

from models import support_room
from models.database import server_now
from queue_manager.core.clock import minutes, seconds
from tasks import app
from tasks.support_snooze import scan_expired_snoozes
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.pace import promptly
from tests.room_lease import lease
from tests.rooms import make_room

pytestmark = pytest.mark.crash

STARTED = "qm:lease:support-snooze:started"
NEIGHBOURS = 200
LEASE = 60.0  # seconds


def make_rooms() -> tuple[ObjectId, list[ObjectId]]:
    """Insert the poison room in the middle of its neighbours, all of them due."""
    due_at = server_now() - seconds(10)
    before = [make_room(due_at) for _ in range(NEIGHBOURS // 2)]
    poison = make_room(due_at)
    return poison, before + [make_room(due_at) for _ in range(NEIGHBOURS // 2)]


def poisoned_worker(tmp_path: Path, poison: ObjectId, does: str, **env: str) -> CeleryProcess:
    env = {"POISON_ROOM": str(poison), "POISON_DOES": does, **env}
    return worker(tmp_path / "worker.log", "--prefetch-multiplier", "512", app="tests.e2e.poison_app", env=env)


def scan() -> None:
    app.send_task("tasks.support_snooze.scan_expired_snoozes", queue="scans")


def losses(client: redis.Redis, room: ObjectId) -> int:
    found: Any = client.hgetall("qm:lease:support-snooze:losses")
    return sum(int(value.split(":")[0]) for item, value in found.items() if str(room) in item)


def waiting_together(client: redis.Redis, rooms: list[ObjectId]) -> list[ObjectId]:
    """Return the rooms that are in one batch with the poison room, when all others are open."""
    closed = [room for room in rooms if not is_open(room)]
    return closed if client.zcard(STARTED) == len(closed) + 1 else []


def recorded_error(room: ObjectId) -> str | None:
    found = support_room.rooms().find_one({"_id": room})
    return found.get("unsnooze_error") if found else None


def is_released(room: ObjectId) -> bool:
    return lease(room).state in ("free", "cooling")


@pytest.mark.parametrize("does", [pytest.param("exit", marks=pytest.mark.smoke), "hang"])
def test_neighbours_of_an_item_that_kills_its_process_are_executed_immediately(
    does: str, tmp_path: Path, client: redis.Redis
) -> None:
    poison, neighbours = make_rooms()
    env = {"QM_ITEM_TIMEOUT_SECONDS": "2"} if does == "hang" else {}
    with poisoned_worker(tmp_path, poison, does, **env) as process:
        scan()
        eventually(lambda: all(is_open(room) for room in neighbours), within=LEASE - 5)
        assert "each item is executed alone" in process.log

        # Alone, it loses its process again; then it is due again, long before its lease ends.
        eventually(lambda: is_released(poison), within=LEASE - 5)
        scan()
        eventually(lambda: losses(client, poison) == 2)
        eventually(lambda: is_released(poison), within=LEASE - 5)
    cause = "Its process died" if does == "exit" else "It took longer than 2 s, so its process was ended"
    assert recorded_error(poison) == f"its process was lost 2 times in a row. {cause}."

    until = lease(poison).ends_at
    assert until is not None
    assert seconds(20) < until - server_now() <= minutes(1)
    assert [losses(client, room) for room in neighbours if losses(client, room) > 1] == []
    assert client.zcard(STARTED) == 0
    assert not is_open(poison)


def test_neighbours_of_an_item_that_raises_system_exit_are_executed_immediately(
    tmp_path: Path, client: redis.Redis
) -> None:
    """It is an error like others: the attempt is retried, and the process goes on."""
    poison, neighbours = make_rooms()
    with poisoned_worker(tmp_path, poison, "raise-exit") as process:
        scan()
        eventually(lambda: all(is_open(room) for room in neighbours), within=LEASE - 5)
        assert "A batch failed as a whole" in process.log
        eventually(lambda: "SystemExit: 1" in process.log)
        assert lease(poison).state == "in-progress"  # until its next attempt
    assert losses(client, poison) == 0
    assert client.zcard(STARTED) == 0
    assert not is_open(poison)


def test_batch_whose_process_is_killed_is_executed_two_seconds_later(tmp_path: Path, client: redis.Redis) -> None:
    poison, neighbours = make_rooms()
    note = tmp_path / "pid"
    with poisoned_worker(tmp_path, poison, "hang", POISON_NOTE=str(note)):
        scan()
        eventually(lambda: note.exists() and note.read_text(), within=LEASE - 5)
        in_batch = eventually(lambda: waiting_together(client, neighbours))
        with promptly(2):
            os.kill(int(note.read_text()), signal.SIGKILL)
            eventually(lambda: all(map(is_open, in_batch)), within=LEASE - 5)


def test_neighbours_of_a_hanging_item_are_executed_after_one_lease(tmp_path: Path, client: redis.Redis) -> None:
    poison, neighbours = make_rooms()
    with poisoned_worker(tmp_path, poison, "hang", QM_LEASE_SECONDS="30", QM_ITEM_TIMEOUT_SECONDS="3600") as process:
        scan()
        eventually(lambda: all(is_open(room) for room in neighbours), within=100)
        assert process.log.count("each item is executed alone") == 1
    assert [losses(client, room) for room in neighbours if losses(client, room)] == []


@pytest.mark.smoke
def test_item_that_kills_the_whole_worker_cools_down_after_its_second_loss(tmp_path: Path, client: redis.Redis) -> None:
    poison, neighbours = make_rooms()
    process = poisoned_worker(tmp_path, poison, "kill")
    scan_expired_snoozes()  # not in the worker, which would be killed with neighbours that are not dispatched yet
    for _ in range(2):
        with process.start():
            eventually(lambda: not process.is_alive())
    with process.start():
        eventually(lambda: losses(client, poison) == 2)
        eventually(lambda: all(is_open(room) for room in neighbours if losses(client, room) < 2))
        assert process.is_alive()
        eventually(lambda: recorded_error(poison) == "its process was lost 2 times in a row")
    # Neighbours that were executed alone at the moment of the second kill are suspected like it.
    assert sum(losses(client, room) >= 2 for room in neighbours) <= 2


def test_item_that_needs_too_much_memory_fails_by_itself(tmp_path: Path, client: redis.Redis) -> None:
    poison, neighbours = make_rooms()
    with poisoned_worker(tmp_path, poison, "memory") as process:
        scan()
        eventually(lambda: all(is_open(room) for room in neighbours))
        eventually(lambda: "final attempt" in process.log or "retry" in process.log.lower())
        assert process.is_alive()
    assert losses(client, poison) == 0


@pytest.mark.smoke
def test_messages_that_came_back_unstarted_are_executed_as_a_batch(tmp_path: Path, client: redis.Redis) -> None:
    rooms = [make_room(server_now() - seconds(10)) for _ in range(50)]
    nobody = ObjectId()
    held = poisoned_worker(tmp_path, rooms[0], "hang")
    with held:
        scan()
        eventually(lambda: client.zcard(STARTED) > 0)
    started = client.zcard(STARTED)
    with poisoned_worker(tmp_path, nobody, "exit") as process:
        eventually(lambda: all(is_open(room) for room in rooms))
        assert process.log.count("Unsnoozed 1 rooms") <= started
