"""A server with the streams of the old message service, and a queue of ours on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.servers import Valkey
from tests.predecessors.relay import Relay
from tests.services.message_queue.message_lab import Lab, WheelValkey


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    with WheelValkey(tmp_path_factory.mktemp("relay"), appendonly=False) as server:
        yield server


@pytest.fixture
def lab(server: Valkey) -> Iterator[Lab]:
    with Lab(server.url, levels=10) as lab:
        lab.empty()
        yield lab


@pytest.fixture
def relay(lab: Lab) -> Relay:
    return Relay(lab.client, "q")
