"""Every test of the message queue runs on Valkey and on the oldest Redis that is supported, each started once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dev.binaries import ServerNotFound
from dev.servers import Valkey
from tests.services.message_queue.message_lab import Lab, PlainRedis, WheelValkey

KINDS = {"valkey": WheelValkey, "redis": PlainRedis}


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Valkey]]:
    """Start a server of a kind when it is first asked for; it runs to the end of the session."""
    running: dict[str, Valkey] = {}
    with ExitStack() as stack:

        def start(kind: str) -> Valkey:
            if kind not in running:
                server = KINDS[kind](tmp_path_factory.mktemp(kind), appendonly=False)
                running[kind] = stack.enter_context(server)
            return running[kind]

        yield start


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of server of this test."""
    try:
        KINDS[request.param].program.find()
    except ServerNotFound as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    return str(request.param)


@pytest.fixture
def server(kind: str, server_of: Callable[[str], Valkey]) -> Valkey:
    """A server without keys."""
    found = server_of(kind)
    with Lab(found.url) as lab:
        lab.empty()
    return found


@pytest.fixture
def lab(server: Valkey) -> Iterator[Lab]:
    """A queue on an empty server, with everything that uses it."""
    with Lab(server.url) as lab:
        yield lab
