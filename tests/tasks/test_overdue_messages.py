"""The scan for overdue messages: its report, and the sweep that it schedules for the next deadline."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient

from dev.ports import free_port
from models import database
from queue_manager.core.clock import ServerClock, seconds, unix_ms
from queue_manager.core.redis_client import connect, time_of
from queue_manager.core.settings import settings
from services.message_queue import MessageQueue, message_queue, queue_admin
from tasks import overdue_messages
from tasks.overdue_messages import requeue_at_deadline, requeue_overdue_messages, schedule_sweep
from tests.eventually import eventually
from tests.pace import Pace, paced, promptly
from tests.real_servers import Servers
from tests.tasks.hand_worker import Message, run, waiting_messages


@pytest.fixture
def queue(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessageQueue]:
    """A queue whose next periodic scan is two minutes away, so that deadlines before it need not be close."""
    with monkeypatch.context() as patch:
        patch.setenv("OVERDUE_CHECK_INTERVAL_MS", "120000")
        settings.cache_clear()
        yield message_queue()
    settings.cache_clear()


def hold(queue: MessageQueue, *, timeout: float, **message: Any) -> str:
    """Enqueue a message and let a consumer fall silent with it."""
    queue.enqueue("report", **message)
    held = queue.dequeue(ack_timeout=timeout)
    assert held is not None
    return held.id


def wait_for_deadline(servers: Servers, id: str) -> None:
    """Wait until the deadline of a message is over by the server's clock."""
    held = queue_admin().find(id)
    assert held is not None
    assert held.deadline_at is not None
    deadline_at = held.deadline_at
    with connect(servers.valkey.url) as client:
        eventually(lambda: time_of(client.time()).timestamp() > deadline_at)


def make_overdue(servers: Servers, id: str) -> None:
    """Move the deadline of a message into the past."""
    with connect(servers.valkey.url) as client:
        assert client.zadd("queue:deadlines", {id: 1}, xx=True, ch=True) == 1


def is_planned_for(planned: Message, id: str, pace: Pace) -> bool:
    """Return True if the sweep comes at the deadline of this message; it is sent after a round trip."""
    [held] = [message for message in queue_admin().list("processing").messages if message.id == id]
    assert held.deadline_at is not None
    assert planned.eta is not None
    return abs(planned.eta - datetime.fromtimestamp(held.deadline_at, UTC)) < seconds(pace.allowed(0.5))


def test_scan_returns_messages_from_the_stream_of_an_older_service(
    queue: MessageQueue, clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue_messages._heals, "_next_at", 0.0)
    with connect(clean.valkey.url) as client:
        client.xadd("queue_manual", {"data": '{"id":"m","type":"job","payload":1}'})
    requeue_overdue_messages()
    assert queue_admin().counts().main == 1


def test_sweep_reports_requeued_and_dead_lettered_messages(queue: MessageQueue, clean: Servers) -> None:
    again, dead = hold(queue, timeout=0.001), hold(queue, timeout=0.001, max_attempts=1)
    wait_for_deadline(clean, dead)
    report = requeue_overdue_messages()
    assert report["requeued"] == 1
    assert report["dead_lettered"] == 1
    assert (report["ids"], report["dlq_ids"]) == ([again], [dead])
    assert (report["found"], report["claimed"], report["enqueued"], report["errors"]) == (2, 2, 1, 0)


def test_a_sweep_is_scheduled_for_a_deadline_before_the_next_tick(queue: MessageQueue, clean: Servers) -> None:
    held = hold(queue, timeout=60)
    with paced() as pace:
        requeue_overdue_messages()
    requeue_overdue_messages()  # the chain is planned once, however many look
    [planned] = waiting_messages(clean.valkey.url, "scans")
    assert is_planned_for(planned, held, pace)
    make_overdue(clean, held)
    run(planned)
    assert [message.id for message in queue_admin().list("main").messages] == [held]


def test_no_sweep_is_scheduled_for_a_deadline_after_the_next_tick(queue: MessageQueue, clean: Servers) -> None:
    hold(queue, timeout=600)
    requeue_overdue_messages()
    assert waiting_messages(clean.valkey.url, "scans") == []


@pytest.mark.usefixtures("queue")
def test_a_dequeue_with_an_earlier_deadline_reschedules_the_sweep(clean: Servers) -> None:
    queue = message_queue(schedule_sweep=schedule_sweep)
    with paced() as pace:
        late = hold(queue, timeout=90)
        early = hold(queue, timeout=30)
    hold(queue, timeout=60)
    first, second = waiting_messages(clean.valkey.url, "scans")
    assert is_planned_for(first, late, pace)
    assert is_planned_for(second, early, pace)


def test_scheduled_sweep_that_comes_too_early_schedules_another(queue: MessageQueue, clean: Servers) -> None:
    held = hold(queue, timeout=60)
    with connect(clean.valkey.url) as client:
        in_a_moment = time_of(client.time()) + seconds(0.1)
        client.set("queue:next_sweep", unix_ms(in_a_moment))
    with paced() as pace:
        requeue_at_deadline()
    [planned] = waiting_messages(clean.valkey.url, "scans")
    assert is_planned_for(planned, held, pace)


@pytest.mark.slow
@pytest.mark.usefixtures("production_bounds")
def test_sweep_does_not_wait_for_an_unavailable_mongodb(queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = f"mongodb://127.0.0.1:{free_port()}/queue_manager"
    hold(queue, timeout=0.001)
    with MongoClient[dict[str, Any]](nobody, serverSelectionTimeoutMS=60_000) as away:
        monkeypatch.setattr(database, "client", lambda: away)
        monkeypatch.setattr(database, "_clock", ServerClock(lambda: away.admin.command("hello")["localTime"]))
        with promptly(6):  # unbounded, a single look at MongoDB would take 60 s
            assert requeue_overdue_messages()["requeued"] == 1
