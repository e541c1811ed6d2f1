"""A server without memory refuses new messages, and allows everything that frees memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from services.message_queue import NewMessage, QueueFull
from tests.services.message_queue.message_lab import Lab

MESSAGES = 12


@pytest.fixture
def full(lab: Lab) -> Iterator[Lab]:
    """A queue with messages, on a server that has no memory left."""
    lab.queue.enqueue_batch([NewMessage(type="job", payload="x" * 1000, id=f"{n}") for n in range(MESSAGES)])
    lab.client.config_set("maxmemory", 1)
    yield lab
    lab.client.config_set("maxmemory", 0)


def test_full_server_refuses_a_batch_as_a_whole(full: Lab) -> None:
    before = full.dump()

    with pytest.raises(QueueFull):
        full.queue.enqueue("job", id="new")
    with pytest.raises(QueueFull):
        full.queue.enqueue_batch([NewMessage(type="job") for _ in range(50)])

    assert full.dump() == before


def test_full_server_refuses_unloaded_scripts_with_the_same_error(full: Lab) -> None:
    full.client.script_flush()
    with pytest.raises(QueueFull):
        full.queue.enqueue("job")
    assert full.take().id == "0"


def test_full_server_delivers_and_acknowledges_messages(full: Lab) -> None:
    for number in range(MESSAGES // 2):
        message = full.take()
        full.queue.touch(message.id, message.lock_token, 60)
        full.queue.ack(message.id, message.lock_token)
        message = full.take(type="job", timeout=1)
        full.queue.ack(message.id, message.lock_token)
        assert full.contents.counts().acknowledged == 2 * number + 2

    assert full.queue.dequeue() is None
    assert full.queue.dequeue(type="job") is None
    assert full.client.exists("q:type:job") == 0


def test_full_server_nacks_sweeps_and_heals_messages(full: Lab) -> None:
    messages = [full.take(ack_timeout=0.001 if number else None) for number in range(MESSAGES)]
    assert full.queue.nack("0", messages[0].lock_token, "boom") is True
    full.until_passed((messages[-1].deadline_at or 0) * 1000)

    swept = full.sweeper.sweep(can_schedule=True)

    assert sorted(swept.requeued) == sorted(message.id for message in messages[1:])
    assert full.heal() == 0
    assert full.contents.counts().main == MESSAGES


def test_full_server_lets_operators_move_change_and_delete_messages(full: Lab) -> None:
    assert full.contents.move(["0", "1"], to="dead") == {"0": "MOVED", "1": "MOVED"}
    assert full.contents.replay(["0"]) == {"0": "MOVED"}
    full.contents.update("2", {"payload": None})
    assert len(full.contents.list("main").messages) == MESSAGES - 1
    assert full.contents.find("1") is not None
    assert full.contents.delete(["3"]) == {"3": "DELETED"}
    assert full.clear() == MESSAGES - 1
