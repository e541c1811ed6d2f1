"""How long a worker waits between two attempts to reach its broker."""

from __future__ import annotations

import re

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
