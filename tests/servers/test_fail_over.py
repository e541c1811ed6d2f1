"""Sentinel makes the replica the primary during work: replicated data is kept, and nothing happens twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from models.database import collection, server_now
from queue_manager.core.clock import seconds
from queue_manager.core.redis_client import make_client
from tests.e2e.job_processes import job_lab, notes
from tests.e2e.watching import is_open, woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.servers.everything import do_everything, processes
from tests.servers.interruptions import FOLLOWS_WITHIN
from tests.servers.redis_servers import Group, sentinel_group

pytestmark = pytest.mark.processes

ROOMS, MESSAGES = 30, 20


def is_replicated(group: Group) -> bool:
    """Return True if the replica has everything that the primary acknowledged."""
    with make_client(group.servers[0].url) as client:
        info = client.info("replication")
    return bool(info["slave0"]["offset"] == info["master_repl_offset"])


def test_work_continues_with_the_new_primary(clean: Servers, tmp_path: Path, figure: Callable[[str], None]) -> None:
    mark = tmp_path / "mark"
    with (
        sentinel_group(tmp_path) as group,
        processes(tmp_path, REDIS_URL=group.url, ACK_TIMEOUT_SECONDS="300") as running,
    ):
        # A job runs, messages wait and are in processing, rooms wait in the broker for a later time.
        job_lab().run("long", 0, str(mark))
        assert [running.add_message() for _ in range(MESSAGES)] == [201] * MESSAGES
        taken = [running.take() for _ in range(MESSAGES // 2)]
        due_at = server_now() + seconds(8)
        rooms = [make_room(due_at) for _ in range(ROOMS)]
        eventually(lambda: is_replicated(group))

        group.servers[0].kill()
        group.sentinels[0].kill()  # on the same machine
        eventually(lambda: group.primary_port() == group.servers[1].port)
        elected = time.monotonic()
        due_in = max((due_at - server_now()).total_seconds(), 0)

        eventually(lambda: running.ask("GET", "/api/queue/status").status == 200)
        served = time.monotonic() - elected
        eventually(lambda: all(map(is_open, rooms)), within=90)
        opened = time.monotonic() - elected - due_in
        figure(f"Redis after its primary was killed: messages served after {served:.1f} s, rooms opened {opened:.1f} s")
        assert max(served, opened) <= FOLLOWS_WITHIN
        acknowledged = [running.acknowledge(one) for one in taken]
        assert acknowledged == [200] * len(taken)
        status = running.ask("GET", "/api/queue/status").body
        assert (status["main"], status["processing"]) == (MESSAGES - len(taken), 0)
        mark.touch()
        eventually(lambda: len(notes("long")) == 1)
        for _ in range(MESSAGES - len(taken)):
            assert running.acknowledge(running.take()) == 200
        do_everything(running)

        assert running.worker.is_alive()
        assert running.beat.is_alive()
    assert [len(moments) for moments in woken(rooms)] == [1] * ROOMS
    assert len(notes("long")) == 1
    assert collection("support_rooms").count_documents({"status": "snoozed"}) == 0
