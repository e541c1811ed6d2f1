"""An older application and Queue Manager at work on the same rooms, as real processes."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from models import support_room
from models.database import server_now
from queue_manager.core.clock import seconds
from services import adoption, support_snooze
from tests.documented import DOCS, block
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.commands import queue_manager
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.predecessors.node_process import node
from tests.real_servers import Servers
from tests.rooms import get_room, make_room

ENV = {"QM_SNOOZE_SCAN_SECONDS": "0.5", "QM_AHEAD_LIMIT": "0", "QM_LEASE_SECONDS": "2"}
OURS = {"unsnoozed_by_task": {"$exists": True}}
ROOMS = 400  # due one after the other, for 20 s


@pytest.mark.node
def test_every_room_wakes_although_the_other_program_is_killed(clean: Servers, tmp_path: Path) -> None:
    now = server_now()
    rooms = [make_room(now + seconds(number * 0.05)) for number in range(ROOMS)]
    with ExitStack() as processes:
        with node("snooze_service.mjs", REDIS_URL=clean.valkey.url, MONGO_DB_URL=clean.mongo.url) as application:
            theirs = {application.next() for _ in range(10)}
            assert any("1 worker of Bull's queue" in note for note in adoption.plan(support_snooze.system).notes)
            processes.enter_context(worker(tmp_path / "worker.log", env=ENV))
            processes.enter_context(CeleryProcess(tmp_path / "beat.log", "beat", env=ENV))
            eventually(lambda: support_room.rooms().count_documents(OURS))
            theirs |= {application.next() for _ in range(10)}
            rooms.append(make_room(snooze_queue_in_progress=True))  # as it leaves a room when it is killed
        eventually(lambda: all(map(is_open, rooms)), within=120, every=0.5)
    assert len(theirs) == 20


@pytest.mark.node
def test_application_takes_over_again_and_every_room_wakes_once(clean: Servers, tmp_path: Path) -> None:
    """The steps of `docs/migrating.md`, "Back to the Node services"."""
    now = server_now()
    rooms = [make_room(now + seconds(number * 0.05)) for number in range(ROOMS)]
    with worker(tmp_path / "worker.log", env=ENV), CeleryProcess(tmp_path / "beat.log", "beat", env=ENV):
        eventually(lambda: support_room.rooms().count_documents(OURS) >= 20)
        assert queue_manager("systems", "pause", "support-snooze", cwd=tmp_path).returncode == 0
        eventually(lambda: in_progress(tmp_path) == 0)
        rooms += [make_room(server_now()) for _ in range(20)]
        assert in_progress(tmp_path) == 0
    ours = {str(room["_id"]) for room in support_room.rooms().find(OURS)}
    assert support_room.rooms().count_documents({support_room.FLAG: True}) == 0

    with node("snooze_service.mjs", REDIS_URL=clean.valkey.url, MONGO_DB_URL=clean.mongo.url) as application:
        theirs = [application.next() for _ in range(len(rooms) - len(ours))]

    assert len(theirs) >= 20
    assert sorted([*ours, *theirs]) == sorted(map(str, rooms))
    assert all(map(is_open, rooms))
    assert support_room.rooms().count_documents(OURS) == len(ours)


@pytest.mark.processes
def test_the_documented_command_clears_flags(clean: Servers) -> None:
    """The command is one of mongosh; its arguments are read as YAML, whose flow style they have."""
    command = block(0, heading="Back to the Node services", page=DOCS / "migrating.md")
    (arguments,) = re.findall(r"^db\.support_rooms\.updateMany\((.*)\)$", command, re.MULTILINE)
    room, other = make_room(snooze_queue_in_progress=True), make_room()
    support_room.rooms().update_many(*yaml.safe_load(f"[{arguments}]"))
    assert get_room(room)[support_room.FLAG] is False
    assert support_room.FLAG not in get_room(other)


def in_progress(directory: Path) -> int:
    """Return the rooms in progress, as `queue-manager health` shows them."""
    state = json.loads(queue_manager("health", "--json", cwd=directory).stdout)
    number: int = state["systems"]["support-snooze"]["in_progress"]
    return number
