"""Workers show that they are online, and are gone soon after they are killed, at once after they end in order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from queue_manager.core.redis_client import connect
from queue_manager.telemetry import worker_heartbeats
from tasks import app
from tests.e2e.celery_processes import worker
from tests.eventually import eventually
from tests.pace import promptly
from tests.real_servers import Servers

pytestmark = pytest.mark.crash


def online(servers: Servers) -> list[str]:
    with connect(servers.valkey.url) as client:
        return [seen.name for seen in worker_heartbeats.online(client)]


def test_a_worker_without_events_is_online_until_it_ends(clean: Servers, tmp_path: Path) -> None:
    with worker(tmp_path / "worker.log", "--hostname", "one@here") as process:
        with promptly(3):
            eventually(lambda: online(clean) == ["one@here"])
        time.sleep(worker_heartbeats.OFFLINE_AFTER.total_seconds() + 1)
        assert online(clean) == ["one@here"]
        process.stop()
        assert online(clean) == []


def test_a_worker_shows_the_queues_that_it_consumes(clean: Servers, tmp_path: Path) -> None:
    with worker(tmp_path / "worker.log", "--queues", "scans,jobs") as process, connect(clean.valkey.url) as client:
        (seen,) = eventually(lambda: worker_heartbeats.online(client))
        assert (seen.queues, seen.release) == (("jobs", "scans"), worker_heartbeats.OWN_RELEASE)
        assert worker_heartbeats.unconsumed([seen], ["scans", "support-snooze"]) == ["support-snooze"]
        app.control.cancel_consumer("jobs")
        eventually(lambda: [one.queues for one in worker_heartbeats.online(client)] == [("scans",)])
        process.stop()
        assert client.keys("qm:workers*") == []


def test_a_killed_worker_is_gone_within_20_seconds(
    clean: Servers, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(worker(tmp_path / f"{name}.log", "--hostname", "same@here")) for name in ("1", "2")
        )
        with promptly(5):
            eventually(lambda: online(clean) == ["same@here", "same@here"])
        second.stop()
        assert online(clean) == ["same@here"]
        first.kill()
        began = time.monotonic()
        eventually(lambda: online(clean) == [], within=20)
        figure(f"presence: a killed worker was gone after {time.monotonic() - began:.1f} s")


def test_a_hanging_worker_is_not_online(clean: Servers, tmp_path: Path) -> None:
    with worker(tmp_path / "worker.log") as process:
        with promptly(3):
            eventually(lambda: len(online(clean)) == 1)
        os.kill(process.pid, signal.SIGSTOP)
        eventually(lambda: online(clean) == [])
        os.kill(process.pid, signal.SIGCONT)
        with promptly(5):
            eventually(lambda: len(online(clean)) == 1)


def test_a_worker_is_online_again_after_an_outage_of_redis(clean: Servers, tmp_path: Path) -> None:
    with worker(tmp_path / "worker.log") as process:
        with promptly(3):
            eventually(lambda: len(online(clean)) == 1)
        with connect(clean.valkey.url) as client:
            client.flushall()  # it lost its data
        with promptly(5):
            eventually(lambda: len(online(clean)) == 1)
        assert process.is_alive()
