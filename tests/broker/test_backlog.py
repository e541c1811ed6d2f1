"""How many messages wait in the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from dev.servers import Valkey
from queue_manager.broker import backlog, scripts
from queue_manager.broker.backlog import Backlog, waiting
from queue_manager.core.clock import seconds
from tests.broker.guard_app import client_app
from tests.eventually import eventually
from tests.pace import promptly


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    with Valkey(tmp_path / "redis") as server, client_app(server.url) as app:
        yield app


def take_one(app: Celery, queue: str, *, ago: float = 0.0) -> None:
    """Deliver one message of `queue`, as to a worker that received it `ago` seconds ago."""
    with app.connection_or_acquire() as connection:
        channel = connection.default_channel
        message = channel.basic_get(queue)
        with channel.conn_or_acquire() as client:
            client.zadd(channel.unacked_index_key, {message.delivery_tag: time.time() - ago})


def test_unknown_queue_has_no_waiting_messages(app: Celery) -> None:
    assert waiting(app, "never-used") == 0


def test_queued_messages_are_counted_as_waiting(app: Celery) -> None:
    for queue in ("items", "items", "other"):
        app.send_task("guard_app.hold", queue=queue)

    assert waiting(app, "items") == 2


def test_message_delivered_a_moment_ago_counts_as_waiting(app: Celery) -> None:
    app.send_task("guard_app.hold", queue="items")
    take_one(app, "items")

    assert waiting(app, "items") == 1


def test_message_held_for_longer_does_not_count_as_waiting(app: Celery) -> None:
    app.send_task("guard_app.hold", queue="items")
    take_one(app, "items", ago=6)

    assert waiting(app, "items") == 0
    assert waiting(app, "items", just_delivered=seconds(10)) == 1


def test_message_renewed_by_its_worker_does_not_count_as_waiting(app: Celery) -> None:
    app.send_task("guard_app.hold", queue="items")
    with app.connection_or_acquire() as connection:
        qos = connection.default_channel.qos
        message = connection.default_channel.basic_get("items")
        qos.append(message, message.delivery_tag)

        def renewed_and_counted() -> int:
            qos.renew()
            return waiting(app, "items", just_delivered=seconds(1))

        assert waiting(app, "items") == 1
        eventually(lambda: renewed_and_counted() == 0)


def test_malformed_unacked_messages_do_not_break_the_count(app: Celery) -> None:
    with app.connection_or_acquire() as connection, connection.default_channel.conn_or_acquire() as client:
        channel = connection.default_channel
        client.lpush("items", "{not JSON", b"\xff")
        scripts.TAKE_MESSAGES(client, *channel._take_arguments(channel._lists.of(["items"]), 10, {"items": 10}))

        assert waiting(app, "items") == 2


def test_unavailable_broker_is_an_error_without_waiting(tmp_path: Path) -> None:
    with Valkey(tmp_path / "redis") as server:
        url = server.url
    with promptly(3), client_app(url) as app, pytest.raises(OperationalError):
        waiting(app, "items")


class Queue:
    """Messages of which workers take some between two counts."""

    def __init__(self, *, drained: int) -> None:
        self.length = self.longest = 0
        self._drained = drained

    def count(self) -> int:
        self.length = max(self.length - self._drained, 0)
        return self.length

    def add(self, count: int) -> None:
        self.length += count
        self.longest = max(self.longest, self.length)


def sent_by_one_scan(queue: Queue, *, found: int, limit: int, batch: int) -> int:
    room_left, sent = Backlog(length=queue.count), 0
    while sent < found and (count := min(batch, found - sent, room_left.room(limit, at_least=batch))):
        queue.add(count)
        room_left.add(count)
        sent += count
    return sent


def test_scan_sends_ten_times_the_limit_while_workers_drain_the_queue_and_keeps_the_limit() -> None:
    queue = Queue(drained=30)

    assert sent_by_one_scan(queue, found=1_000, limit=100, batch=20) == 1_000
    assert queue.longest <= 100


def test_scan_ends_at_the_limit_while_no_worker_takes_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "STALLED_AFTER", 0.05)
    queue = Queue(drained=0)

    assert sent_by_one_scan(queue, found=1_000, limit=100, batch=20) == 100


def test_scan_goes_on_with_the_room_that_is_left_if_its_batches_are_larger_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "STALLED_AFTER", 0.05)
    room_left = Backlog(length=lambda: 5)
    assert [room_left.room(10, at_least=100) for _ in range(2)] == [10, 10]
    room_left.add(10)
    assert [room_left.room(10, at_least=100) for _ in range(2)] == [5, 5]


def test_scan_continues_past_its_time_budget_until_it_has_sent_something() -> None:
    backlog = Backlog(time_left=seconds(0))
    backlog.add(0)  # a batch whose items are all cooling down
    assert backlog.room(100) == 100
    backlog.add(1)
    assert backlog.room(100) == 0
