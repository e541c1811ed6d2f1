"""The statistics of the message queue, and the messages that health names."""

from __future__ import annotations

import pytest

from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from queue_manager.health_rules import Rule
from services.message_queue import MessageQueue, QueueAdmin, message_queue, queue_admin, server_url, system

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> MessageQueue:
    monkeypatch.setattr(QueueAdmin, "list", None)  # it reads the payloads
    return message_queue()


def test_only_messages_whose_deadline_has_passed_are_late(queue: MessageQueue) -> None:
    for id in ("overdue", "held"):
        queue.enqueue("mail", id=id)
    queue.receive_many(2)
    with connect(server_url()) as client:
        client.zadd(f"{settings().queue_name}:deadlines", {"overdue": (queue_admin().counts().now - 3600) * 1000})
    found = system.stats()
    assert (found.numbers["overdue"], found.late) == (1, ["overdue"])


def test_the_newest_dead_letters_are_named(queue: MessageQueue) -> None:
    ids = [queue.enqueue("mail", id=f"m{number}") for number in range(7)]
    queue_admin().move(ids, to="dead")
    problem = system.stats().problems[Rule.DEAD_MESSAGES]
    assert problem.endswith("(m6, m5, m4, m3, m2 and 2 more)")
