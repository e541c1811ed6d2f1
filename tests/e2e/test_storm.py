"""A storm: workers and beats are killed at random under load; every room wakes once and never early."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bson import ObjectId

from models import support_room
from models.database import server_now
from queue_manager.core.clock import seconds
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.watching import times_woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import T0

pytestmark = pytest.mark.crash

ROOMS, SPREAD, KILL_EVERY = 3_000, 60, 3.0
ENV = {"QM_LEASE_SECONDS": "5", "QM_SNOOZE_SCAN_SECONDS": "2"}


@pytest.mark.stress
def test_every_room_wakes_once_with_any_process_killed(
    clean: Servers, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    chance = random.Random(20260131)
    now = server_now()
    due_at = {ObjectId(): now + seconds(chance.randrange(SPREAD * 1000) / 1000) for _ in range(ROOMS)}
    support_room.rooms().insert_many(
        {"_id": room, "status": "snoozed", "snooze_time": {"time": end, "set_at": T0}} for room, end in due_at.items()
    )
    processes = [worker(tmp_path / f"worker{n}.log", "--hostname", f"w{n}@%h", env=ENV) for n in range(2)]
    processes += [CeleryProcess(tmp_path / f"beat{n}.log", "beat", env=ENV) for n in range(2)]
    for process in processes:
        process.start()

    kills = 0
    while (server_now() - now).total_seconds() < SPREAD:
        victim = chance.choice(processes)
        victim.kill()
        kills += 1
        victim.start(ready=False)
        time.sleep(KILL_EVERY)  # the storm's rhythm, not a wait for anything

    eventually(lambda: support_room.rooms().count_documents({"status": "snoozed"}) == 0, within=200, every=1)
    for process in processes:
        process.kill()
    woken = {room: times_woken(room) for room in due_at}
    figure(f"storm: {ROOMS} rooms, {kills} kills: each woken once")
    assert {len(times) for times in woken.values()} == {1}
    assert all(times[0] >= due_at[room] for room, times in woken.items())
