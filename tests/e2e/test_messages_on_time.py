"""Overdue messages with real beat and worker: requeued at their deadline, not at the next tick."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from queue_manager.core.settings import settings
from services.message_queue import message_queue, queue_admin
from tasks.overdue_messages import schedule_sweep
from tests.e2e.celery_processes import QUICK_START, CeleryProcess
from tests.eventually import eventually
from tests.pace import paced
from tests.real_servers import Servers

pytestmark = pytest.mark.processes

LATEST = 250  # ms after its deadline, on an idle machine


def lateness(url: str, deadlines: dict[str, float]) -> list[float]:
    """Return by how many ms each message was taken back after its deadline, by the clock of the queue's server."""
    with redis.Redis.from_url(url) as client:
        events = [json.loads(fields[b"event"]) for _, fields in client.xrange("queue:events")]
    taken = {id: event["timestamp"] for event in events if event["type"] == "requeue" for id in event["payload"]["ids"]}
    return [taken[id] - deadline * 1000 for id, deadline in deadlines.items()]


@pytest.fixture(params=[5_000, 120_000], ids=["between ticks", "without a tick"])
def env(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of all processes, also of this one, with a time between two periodic sweeps."""
    env = {"QM_MESSAGE_QUEUE": "true", "OVERDUE_CHECK_INTERVAL_MS": str(request.param)}
    with monkeypatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        settings.cache_clear()
        yield env
    settings.cache_clear()


def test_messages_are_requeued_at_their_deadlines(
    env: dict[str, str], clean: Servers, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    queue = message_queue(schedule_sweep=schedule_sweep)
    with (
        CeleryProcess(tmp_path / "worker.log", "worker", "--queues", "scans", *QUICK_START, env=env),
        CeleryProcess(tmp_path / "beat.log", "beat", env=env),
    ):
        queue.enqueue("warm-up")
        first = queue.dequeue(ack_timeout=0.3)
        assert first is not None
        eventually(lambda: queue_admin().counts().main == 1)
        sum(queue_admin().clear_in_batches())
        deadlines = {}
        with paced() as pace:
            for number in range(60):
                own = f"report-{number}"  # a type of its own: none is taken twice
                queue.enqueue(own)
                held = queue.dequeue(type=own, ack_timeout=0.5 + number * 0.11)  # spread over two periods of 5 s
                assert held is not None
                assert held.deadline_at is not None
                deadlines[held.id] = held.deadline_at
            eventually(lambda: queue_admin().counts().main == len(deadlines))
    late = sorted(lateness(clean.valkey.url, deadlines))
    figure(f"message taken back after its deadline: median {late[30]:.0f} ms, latest of 60 {late[-1]:.0f} ms")
    assert late[0] >= 0
    assert late[-1] <= pace.allowed(LATEST)
