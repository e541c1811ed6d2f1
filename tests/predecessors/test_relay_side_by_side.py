"""Relay and Queue Manager at work on the same streams, as real processes, and Relay alone again afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from services.message_queue import queue_admin
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.commands import queue_manager
from tests.predecessors.node_process import NodeProcess, node
from tests.real_servers import Servers
from tests.web.web_process import Answer, Web, forked_web

pytestmark = pytest.mark.node

ENV = {
    "QM_MESSAGE_QUEUE": "true",
    "QUEUE_REQUIRE_LOCK_TOKEN": "false",
    "ACK_TIMEOUT_SECONDS": "2",
    "MAX_ATTEMPTS": "100",
    "OVERDUE_CHECK_INTERVAL_MS": "500",
}


def relay(role: str, servers: Servers, messages: int = 0, **env: str) -> AbstractContextManager[NodeProcess]:
    return node("relay_service.mjs", role, "queue", str(messages), REDIS_URL=servers.valkey.url, **env)


def send(process: Web, path: str, body: dict[str, Any]) -> Answer:
    return process.post(f"/api/queue/{path}", json.dumps(body), Content_Type="application/json")


def enqueue(process: Web, messages: int) -> Iterator[str]:
    """Add messages as a client of the HTTP API; yield their ids."""
    for number in range(messages):
        added = send(process, "message", {"type": "mail", "payload": {"number": number}, "priority": number % 10})
        assert added.status == 201
        yield added.body["id"]


def consume(process: Web, query: str) -> set[str]:
    """Receive a message and acknowledge it; return its id unless none waits, or the deadline has passed meanwhile."""
    answer = process.get(f"/api/queue/message?{query}")
    if answer.status != 200:
        return set()
    id: str = answer.body["id"]
    return {id} if send(process, "ack", {"id": id}).status == 200 else set()


def is_empty() -> bool:
    counts = queue_admin().counts()
    return counts.main == counts.processing == counts.dead == 0


def test_no_message_is_lost_side_by_side_and_back_again(clean: Servers, tmp_path: Path) -> None:
    ours: set[str] = set()
    with ExitStack() as processes:
        process = processes.enter_context(forked_web(tmp_path, **ENV))
        processes.enter_context(worker(tmp_path / "worker.log", env=ENV))
        processes.enter_context(CeleryProcess(tmp_path / "beat.log", "beat", env=ENV))
        with ExitStack() as old:
            producer = old.enter_context(relay("producer", clean, 100))
            ours |= consume(process, "timeout=10")
            sent = {producer.next() for _ in range(100)} | {*enqueue(process, 60)}
            consumer = old.enter_context(relay("consumer", clean, ACK_TIMEOUT_SECONDS="2"))
            theirs = {consumer.next() for _ in range(20)}
            for number in range(20):
                ours |= consume(process, "type=mail" if number % 2 else "")
            theirs |= {consumer.next() for _ in range(5)}
        # The consumer was killed while it held a message, and maybe the lock of the sweepers, which expires after 30 s.
        # It may have acknowledged one message that it did not print.
        theirs |= {*consumer.rest()}
        while not is_empty():
            ours |= consume(process, "timeout=1")
        assert len(sent - ours - theirs) <= 1
        assert ours
        assert ours | theirs <= sent

        sent = {*enqueue(process, 20)}
        held = queue_manager("queue", "list", "processing", "--json", cwd=tmp_path, **ENV)
        assert json.loads(held.stdout)["messages"] == []
    with relay("producer", clean, 20) as producer, relay("consumer", clean) as consumer:
        sent |= {producer.next() for _ in range(20)}
        assert {consumer.next() for _ in range(40)} == sent
    assert is_empty()
