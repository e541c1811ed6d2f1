"""A server of its own for each module, emptied for each test, and a connection to it on our transport."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
from kombu import Connection
from redis import Redis

from dev.servers import Valkey
from queue_manager.broker import queue_lists
from tests.broker.taking import connected


@pytest.fixture(scope="module")
def server_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with Valkey(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def server(server_of_module: Valkey) -> Valkey:
    with Redis.from_url(server_of_module.url) as client:
        client.config_set("maxmemory", 0)
        client.flushall()
    return server_of_module


@pytest.fixture
def client(server: Valkey) -> Iterator[Redis]:
    with Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def connection(server: Valkey, client: Redis) -> Iterator[Connection]:
    with connected(server.url) as connection:
        yield connection


@pytest.fixture
def unpolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels learn of a message from the server alone."""
    monkeypatch.setattr(queue_lists, "POLL_INTERVAL", inf)
