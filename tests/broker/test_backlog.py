"""What counts as waiting in the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from dev.servers import Valkey
from queue_manager.broker.backlog import waiting
from queue_manager.core.clock import seconds
from tests.broker.guard_app import client_app
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


def test_queue_that_does_not_exist_has_nothing_waiting(app: Celery) -> None:
    assert waiting(app, "never-used") == 0


def test_messages_of_the_queue_wait(app: Celery) -> None:
    for queue in ("items", "items", "other"):
        app.send_task("guard_app.hold", queue=queue)

    assert waiting(app, "items") == 2


def test_message_delivered_a_moment_ago_still_waits(app: Celery) -> None:
    app.send_task("guard_app.hold", queue="items")
    take_one(app, "items")

    assert waiting(app, "items") == 1


def test_message_held_for_longer_does_not_wait(app: Celery) -> None:
    app.send_task("guard_app.hold", queue="items")
    take_one(app, "items", ago=6)

    assert waiting(app, "items") == 0
    assert waiting(app, "items", just_delivered=seconds(10)) == 1


def test_broker_that_is_away_is_an_error_at_once(tmp_path: Path) -> None:
    with Valkey(tmp_path / "redis") as server:
        url = server.url
    with promptly(3), client_app(url) as app, pytest.raises(OperationalError):
        waiting(app, "items")
