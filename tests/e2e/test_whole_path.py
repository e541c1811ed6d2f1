"""The whole path with nothing left out: beat, scan, claim, message, item, MongoDB, Redis, a Socket.IO client.

pytest-celery's set-up, whose nodes are processes of this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import socketio
from celery import Celery
from pytest_celery import CeleryBrokerCluster, CeleryTestSetup, CeleryWorkerCluster

from dev.children import spawn
from dev.ports import free_port, is_answering
from models.database import server_now
from queue_manager.core.clock import seconds, to_iso
from tests.documented import DOCS, block
from tests.e2e.celery_processes import ROOT, TESTS, CeleryProcess, worker
from tests.e2e.local_nodes import LocalBroker, LocalCeleryNode, LocalProcess, LocalServer
from tests.e2e.watching import is_open, times_woken
from tests.eventually import eventually
from tests.pace import paced
from tests.real_servers import Servers
from tests.rooms import get_room, make_room

ENV = {"QM_SNOOZE_SCAN_SECONDS": "2"}


@pytest.fixture
def celery_broker_cluster(clean: Servers) -> CeleryBrokerCluster:
    return CeleryBrokerCluster(LocalBroker(LocalServer(clean.valkey)))


@pytest.fixture
def celery_backend_cluster() -> None:
    """Results are not kept."""


@pytest.fixture
def celery_worker_cluster(clean: Servers, tmp_path: Path, celery_setup_app: Celery) -> Iterator[CeleryWorkerCluster]:
    """A worker and a beat, each a real process."""
    the_worker = worker(tmp_path / "worker.log", env=ENV).start(ready=False)
    beat = CeleryProcess(tmp_path / "beat.log", "beat", env=ENV).start(ready=False)
    cluster = CeleryWorkerCluster(
        LocalCeleryNode(LocalProcess(the_worker, role="worker"), celery_setup_app),
        LocalCeleryNode(LocalProcess(beat, role="beat"), celery_setup_app),
    )
    yield cluster
    for node in cluster:
        node.teardown()


@dataclass(frozen=True)
class Browser:
    """A Socket.IO client and what it received."""

    client: socketio.Client
    received: Queue[Any]


@pytest.fixture
def browser(clean: Servers) -> Iterator[Browser]:
    port = free_port()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = spawn([sys.executable, str(TESTS / "socketio_server.py"), str(port)], env=env)
    eventually(lambda: is_answering(port))
    received: Queue[Any] = Queue()
    client = socketio.Client(reconnection=False)
    client.on("support_room_updated", received.put)
    client.connect(f"http://127.0.0.1:{port}", wait_timeout=30)
    yield Browser(client=client, received=received)
    server.kill()  # first: a client that polls would wait for the end of its poll
    client.disconnect()


def test_room_wakes_and_a_browser_sees_it(
    celery_setup: CeleryTestSetup, browser: Browser, figure: Callable[[str], None]
) -> None:
    assert celery_setup.ready(ping=False, control=False, docker=True)
    due_at = server_now() + seconds(4)
    room = make_room(due_at)
    browser.client.call("join", f"support-{get_room(room)['account_id']}")

    with paced() as pace:
        event = browser.received.get(timeout=60)

    assert is_open(room)
    (woken_at,) = times_woken(room)
    assert event == {"room_id": str(room), "action": "unsnoozed", "timestamp": to_iso(woken_at)}
    lateness = woken_at - due_at
    figure(f"snooze: woken {lateness.total_seconds() * 1000:.0f} ms after its end")
    assert seconds(0) <= lateness < seconds(pace.allowed(2))
    assert browser.received.empty()


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["by-name", "that-has-installed-us"])
def test_another_application_wakes_a_room(
    number: int, celery_setup: CeleryTestSetup, clean: Servers, tmp_path: Path
) -> None:
    assert celery_setup.ready(ping=False, control=False, docker=True)
    room = make_room(server_now() - seconds(1), snooze_queue_in_progress=True)  # which scans leave alone for a minute
    code = block(number, page=DOCS / "how-to" / "call-tasks.md").replace("redis://cache:6379/0", clean.valkey.url)
    *_, call = code.splitlines()
    code = f"room_id = {str(room)!r}\n{code.replace(call, f'sent = {call}')}print(sent.id)\n"

    program = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)

    assert program.returncode == 0, program.stderr
    eventually(lambda: is_open(room))
    assert get_room(room)["unsnoozed_by_task"] == program.stdout.strip()
