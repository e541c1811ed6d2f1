"""Messages with a priority, from a stock Celery application with any priority steps, are done by our workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis
from celery import Celery

from models.database import server_now
from queue_manager.broker.backlog import waiting
from queue_manager.core.clock import seconds
from tests.e2e.celery_processes import worker
from tests.e2e.commands import environment
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = pytest.mark.processes

QUEUE = "support-snooze"
STEPS = {"default": None, "all": [*range(10)], "odd": [0, 1, 8]}


def send(url: str, name: str, *arguments: object, steps: list[int] | None, priority: int) -> None:
    """Send a task from a stock application."""
    with Celery(broker=url, set_as_current=False) as theirs:
        if steps is not None:
            theirs.conf.broker_transport_options = {"priority_steps": steps}
        theirs.send_task(name, arguments, queue=QUEUE, priority=priority)


@pytest.mark.parametrize("steps", STEPS)
def test_messages_of_every_priority_are_executed(steps: str, clean: Servers, tmp_path: Path) -> None:
    rooms = [make_room(server_now() - seconds(1), snooze_queue_in_progress=True) for _ in range(10)]
    with worker(tmp_path / "log"):
        for priority, room in enumerate(rooms):
            send(
                clean.valkey.url, "tasks.support_snooze.unsnooze_room", str(room), steps=STEPS[steps], priority=priority
            )
        eventually(lambda: all(is_open(room) for room in rooms))


def test_messages_of_every_priority_are_counted_and_purged(clean: Servers) -> None:
    from tasks import app

    for priority in range(10):
        send(clean.valkey.url, "any", steps=STEPS["all"], priority=priority)

    assert waiting(app, QUEUE) == 10
    command = [sys.executable, "-m", "celery", "-A", "tasks", "purge", "--force"]
    subprocess.run(command, env=environment(), capture_output=True, check=True)

    assert waiting(app, QUEUE) == 0
    with redis.Redis.from_url(clean.valkey.url) as client:
        assert not [*client.scan_iter(f"{QUEUE}*")]


def test_unknown_task_with_a_priority_is_a_dead_letter(clean: Servers, tmp_path: Path) -> None:
    with worker(tmp_path / "log"), redis.Redis.from_url(clean.valkey.url) as client:
        send(clean.valkey.url, "nobody.knows.this", steps=None, priority=9)
        eventually(lambda: client.llen("qm:dead-letters") == 1)
