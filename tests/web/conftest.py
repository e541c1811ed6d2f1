"""The web processes that most tests use; a module whose process has other settings replaces these fixtures."""

from __future__ import annotations

import pytest

from tests.real_servers import Servers
from tests.web.queue_client import Queue, empty_queue
from tests.web.web_process import Web, shared_web


@pytest.fixture(scope="session")
def process(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return shared_web(tmp_path_factory)


@pytest.fixture
def queue(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """The queue of a process with the message queue, emptied."""
    return empty_queue(servers, tmp_path_factory)
