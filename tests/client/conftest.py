"""The clients of the tests, each test with both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queue_manager.client import Client
from tests.client.clients import connected, served, url_of
from tests.real_servers import Servers
from tests.web.queue_client import Queue


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queue(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return served(clean, tmp_path_factory)


@pytest.fixture
def client(kind: str, queue: Queue) -> Iterator[Client]:
    with connected(kind, url_of(queue.web.port)) as client:
        yield client
