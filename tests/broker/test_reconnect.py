"""A worker whose broker was away: how long it waits between two attempts, and how it settles messages then."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError

from dev.ports import free_port
from queue_manager.broker.consumer import Consumer

MAX_RETRIES = 8


def test_worker_waits_at_most_five_seconds_between_attempts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: None)
    app = Celery(set_as_current=False)
    app.conf.broker_connection_max_retries = MAX_RETRIES
    consumer = object.__new__(Consumer)  # only with what it needs to connect
    consumer.app, consumer.first_connection_attempt = app, False
    with Connection(f"redis://127.0.0.1:{free_port()}/0") as connection, pytest.raises(OperationalError):
        consumer.ensure_connected(connection)
    waits = re.findall(r"Trying again in (\d+\.\d+) second", caplog.text)
    assert len(waits) == MAX_RETRIES
    assert max(map(float, waits)) <= 5


@pytest.mark.parametrize(("has_processes", "is_restored"), [(True, True), (True, False), (False, True)])
def test_messages_are_settled_at_once_by_a_pool_of_processes_with_its_whole_prefetch_count(
    has_processes: bool, is_restored: bool
) -> None:
    settle: list[Any] = []
    consumer: Any = object.__new__(Consumer)
    consumer.hub, consumer.pool = SimpleNamespace(), SimpleNamespace(uses_semaphore=has_processes, num_processes=1)
    consumer.task_consumer = SimpleNamespace(channel=None)
    consumer.strategies = {"one": lambda message, payload, ack, reject, callbacks: settle.extend([ack, reject])}
    consumer.on_task_message, consumer.restart_count = set(), 1
    consumer._maximum_prefetch_restored = is_restored
    consumer.initial_prefetch_count, consumer.prefetch_multiplier = 1, 4
    consumer.qos = SimpleNamespace(value=1)
    message = SimpleNamespace(
        headers={"task": "one"}, payload=[], body=b"[]", ack_log_error=object(), reject_log_error=object()
    )
    consumer.create_task_handler()(message)
    assert len(settle) == 2
    is_at_once = settle == [message.ack_log_error, message.reject_log_error]
    assert is_at_once == (has_processes and is_restored)
