"""Deployments in which nothing is wrong, and the empty servers of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from queue_manager.core.clock import hours
from queue_manager.telemetry import worker_heartbeats
from services.message_queue import MessageQueue, message_queue
from tests.e2e.health_command import lead, repeated, run_scans, show_worker
from tests.real_servers import Servers


@pytest.fixture
def client(clean: Servers) -> Iterator[redis.Redis]:
    """A client of the Redis, which is empty."""
    with redis.Redis.from_url(clean.valkey.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def queue(clean: Servers) -> MessageQueue:
    """The message queue, which is empty."""
    return message_queue()


@pytest.fixture
def scanned(clean: Servers) -> Iterator[Servers]:
    """A beat has led for hours, and the scan of each system ran a moment ago."""
    lead(clean, since=hours(5))
    with repeated(run_scans):
        yield clean


@pytest.fixture
def well(scanned: Servers) -> Iterator[Servers]:
    """There is a worker on every queue, too."""
    with repeated(show_worker):
        yield scanned
    worker_heartbeats.remove("worker@here")
