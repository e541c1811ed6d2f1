"""An older application and Queue Manager at work on the same rooms, as real processes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from models import support_room
from models.database import server_now
from queue_manager.core.clock import seconds
from services import adoption, support_snooze
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.predecessors.node_process import node
from tests.real_servers import Servers
from tests.rooms import make_room

ENV = {"QM_SNOOZE_SCAN_SECONDS": "0.5", "QM_AHEAD_LIMIT": "0", "QM_LEASE_SECONDS": "2"}
OURS = {"unsnoozed_by_task": {"$exists": True}}
ROOMS = 400  # due one after the other, for 20 s


@pytest.mark.node
@pytest.mark.timeout(240)
def test_every_room_wakes_although_the_other_program_is_killed_at_work(clean: Servers, tmp_path: Path) -> None:
    now = server_now()
    rooms = [make_room(now + seconds(number * 0.05)) for number in range(ROOMS)]
    with ExitStack() as processes:
        with node("snooze_service.mjs", REDIS_URL=clean.valkey.url, MONGO_DB_URL=clean.mongo.url) as application:
            theirs = {application.next() for _ in range(10)}
            assert any("1 worker of Bull's queue" in note for note in adoption.plan(support_snooze.system).notes)
            processes.enter_context(worker(tmp_path / "worker.log", env=ENV))
            processes.enter_context(CeleryProcess(tmp_path / "beat.log", "beat", env=ENV))
            eventually(lambda: support_room.rooms().count_documents(OURS), within=60)
            theirs |= {application.next() for _ in range(10)}
            rooms.append(make_room(snooze_queue_in_progress=True))  # as it leaves a room when it is killed
        eventually(lambda: all(map(is_open, rooms)), within=120, every=0.5)
    assert len(theirs) == 20
