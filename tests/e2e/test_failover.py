"""Redis fails over: its address leads to the new primary; the old one becomes a replica and keeps its connections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dev.ports import LOOPBACK
from dev.servers import Valkey
from models.database import server_now
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.beat.status import leadership
from queue_manager.core.clock import seconds
from queue_manager.telemetry import worker_heartbeats
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.tcp_proxy import TcpProxy
from tests.e2e.watching import is_open, listening
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.web_process import Web, web

pytestmark = pytest.mark.crash


@pytest.fixture
def valkeys(tmp_path: Path) -> Iterator[tuple[Valkey, Valkey]]:
    """A primary and its replica."""
    with Valkey(tmp_path / "old") as old, Valkey(tmp_path / "new") as new:
        with redis.Redis.from_url(new.url) as client:
            client.replicaof(LOOPBACK, str(old.port))
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
        yield old, new


def enqueue(process: Web) -> int:
    return process.post("/api/queue/message", {"type": "mail"}).status


def test_all_processes_follow_the_address_to_the_new_primary(
    clean: Servers, valkeys: tuple[Valkey, Valkey], tmp_path: Path
) -> None:
    old, new = valkeys
    with TcpProxy(old.port) as proxy, redis.Redis.from_url(new.url, decode_responses=True) as on_new:
        env = {
            "REDIS_URL": proxy.redis_url,
            "QM_CONVERSATIONS": "true",
            "QM_MESSAGE_QUEUE": "true",
            "QM_SNOOZE_SCAN_SECONDS": "1",
            "QM_LEASE_SECONDS": "5",
        }
        with (
            worker(tmp_path / "worker.log", env=env) as the_worker,
            CeleryProcess(tmp_path / "beat.log", "beat", env=env) as beat,
            web(tmp_path, **env) as the_web,
        ):
            before = make_room(server_now() - seconds(1))
            eventually(lambda: is_open(before))
            assert enqueue(the_web) == 201
            epoch = eventually(lambda: leadership(on_new, LEADER_LOCK)).epoch

            on_new.replicaof("NO", "ONE")
            proxy.target = new.port
            with redis.Redis.from_url(old.url) as on_old, listening(new.url) as heard:
                on_old.replicaof(LOOPBACK, str(new.port))
                eventually(lambda: enqueue(the_web) == 201)
                rooms = [make_room(server_now() - seconds(1)) for _ in range(3)]
                eventually(lambda: all(is_open(room) for room in rooms))
                more = [make_room(server_now() - seconds(1)) for _ in range(3)]
                eventually(lambda: all(is_open(room) for room in more))
                eventually(lambda: all(heard.of(room) for room in more))
                scanned = int(on_new.hget("qm:totals:tasks.support_snooze.scan_expired_snoozes", "runs") or 0)
                eventually(
                    lambda: (
                        int(on_new.hget("qm:totals:tasks.support_snooze.scan_expired_snoozes", "runs") or 0) > scanned
                    )
                )
                led = eventually(lambda: leadership(on_new, LEADER_LOCK))
                assert led.pid == beat.pid
                assert led.epoch >= epoch
                eventually(lambda: [one.pid for one in worker_heartbeats.online(on_new)] == [the_worker.pid])
                assert the_web.get("/api/queue/status").body["main"] >= 2
            assert the_worker.is_alive()
            assert beat.is_alive()
            assert "Unrecoverable" not in the_worker.log
