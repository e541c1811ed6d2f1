"""Redis or MongoDB is killed with work in flight and comes back: worker and beat live, and every room wakes."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from beat_schedule import SYSTEMS
from dev.embedded_server import EmbeddedServer
from dev.ports import is_free
from dev.processes import children
from dev.servers import Mongo, Valkey
from models import database, schema
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.watching import is_open, times_woken
from tests.eventually import eventually
from tests.rooms import get_room, make_room

pytestmark = pytest.mark.crash

OUTAGE_SEEN = {"valkey": "Connection to broker lost", "mongo": "A step of the heartbeat failed"}
ENV = {"QM_LEASE_SECONDS": "3", "QM_SNOOZE_SCAN_SECONDS": "5"}


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "valkey") as valkey:
        yield valkey


@pytest.fixture
def mongo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mongo]:
    """A MongoDB of the test's own, also for this process."""
    database.close()
    with Mongo(tmp_path / "mongo") as mongo:
        monkeypatch.setenv("MONGO_DB_URL", mongo.url)
        settings.cache_clear()
        schema.migrate(SYSTEMS)
        yield mongo
        database.close()
    settings.cache_clear()


@pytest.fixture
def processes(tmp_path: Path, valkey: Valkey, mongo: Mongo) -> Iterator[list[CeleryProcess]]:
    """A worker whose items are slow and fail at first, so that some run and some wait for a retry; and a beat."""
    crash = {"CRASH_AT": "attempt", "CRASH_DO": "slow,fail", "CRASH_MARK": str(tmp_path / "healthy")}
    env = {**ENV, "REDIS_URL": valkey.url, "MONGO_DB_URL": mongo.url}
    with (
        worker(tmp_path / "worker.log", app="tests.e2e.crash_app", env={**env, **crash}) as the_worker,
        CeleryProcess(tmp_path / "beat.log", "beat", env=env) as beat,
    ):
        yield [the_worker, beat]


@pytest.mark.smoke
@pytest.mark.parametrize("victim", ["valkey", "mongo"])
def test_processes_continue_after_an_outage_of_a_server(
    victim: str,
    request: pytest.FixtureRequest,
    processes: list[CeleryProcess],
    tmp_path: Path,
) -> None:
    server: EmbeddedServer = request.getfixturevalue(victim)
    the_worker, beat = processes
    now = server_now()
    # Due now: running, or waiting for a retry. Due soon: held by the worker with its time. Later: not known yet.
    rooms = [make_room(now + seconds(due)) for due in (*[-1] * 12, *[7, 8, 9] * 2, *[14, 16] * 2)]
    due_at = {room: get_room(room)["snooze_time"]["time"] for room in rooms}
    eventually(lambda: the_worker.log.count("Retry in") >= 3)

    server.kill()
    eventually(lambda: is_free(server.port))
    eventually(lambda: OUTAGE_SEEN[victim] in the_worker.log)
    (tmp_path / "healthy").touch()
    server.start()

    eventually(lambda: all(is_open(room) for room in rooms))
    assert the_worker.is_alive(), the_worker.log
    assert beat.is_alive(), beat.log
    for room in rooms:
        (woken_at,) = times_woken(room)
        assert woken_at >= due_at[room]
    assert "Unrecoverable error" not in the_worker.log


def test_worker_survives_full_memory_of_redis(valkey: Valkey, mongo: Mongo, tmp_path: Path) -> None:
    env = {**ENV, "QM_LEASE_SECONDS": "2", "REDIS_URL": valkey.url, "MONGO_DB_URL": mongo.url}
    rooms = [make_room(server_now() - seconds(1)) for _ in range(5)]
    with worker(tmp_path / "worker.log", env=env) as the_worker, redis.Redis.from_url(valkey.url) as client:
        the_worker.signal(signal.SIGSTOP)
        theirs = Celery(broker=valkey.url, set_as_current=False)
        for _ in range(3):
            theirs.send_task("tasks.support_snooze.scan_expired_snoozes", queue="scans")
        client.config_set("maxmemory", "1mb")
        the_worker.signal(signal.SIGCONT)

        eventually(lambda: "refused a command (command not allowed when used memory" in the_worker.log)
        client.config_set("maxmemory", "0")
        assert the_worker.is_alive()
        with CeleryProcess(tmp_path / "beat.log", "beat", env=env):
            eventually(lambda: all(is_open(room) for room in rooms))
        assert the_worker.is_alive(), the_worker.log
        theirs.close()


@pytest.mark.smoke
def test_result_pending_since_an_outage_is_read_before_its_process_is_killed(
    valkey: Valkey, mongo: Mongo, tmp_path: Path
) -> None:
    timeout, may_end = 15.0, tmp_path / "may end"
    crash = {"CRASH_AT": "attempt", "CRASH_DO": "hold", "CRASH_MARK": str(may_end)}
    env = {**ENV, **crash, "QM_ITEM_TIMEOUT_SECONDS": str(timeout), "REDIS_URL": valkey.url, "MONGO_DB_URL": mongo.url}
    room = make_room(server_now() - seconds(1))
    with (
        worker(tmp_path / "worker.log", app="tests.e2e.crash_app", env=env) as the_worker,
        CeleryProcess(tmp_path / "beat.log", "beat", env=env),
        redis.Redis.from_url(valkey.url) as client,
    ):
        eventually(lambda: client.zcard("qm:lease:support-snooze:started"))
        pool = children(the_worker.pid)
        valkey.kill()
        eventually(lambda: OUTAGE_SEEN["valkey"] in the_worker.log)
        may_end.touch()
        eventually(lambda: is_open(room))
        time.sleep(timeout)  # until its time is over
        valkey.start()

        another = make_room(server_now() - seconds(1))
        eventually(lambda: is_open(another))
        assert "took too long" not in the_worker.log
        assert children(the_worker.pid) == pool
