"""A consumer that no longer holds a message changes no byte of any key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.message_queue import LockLost, Message, UnknownMessage
from tests.services.message_queue.message_lab import Lab

Act = Callable[[Lab, Message], object]


def ack(lab: Lab, message: Message) -> None:
    lab.queue.ack(message.id, message.lock_token)


def nack(lab: Lab, message: Message) -> None:
    lab.queue.nack(message.id, message.lock_token, "late")


def touch(lab: Lab, message: Message) -> None:
    lab.queue.touch(message.id, message.lock_token, 60)


def requeue(lab: Lab, message: Message) -> None:
    lab.lapse(message.id)
    assert lab.sweeper.sweep().requeued == [message.id]


def requeue_and_take(lab: Lab, message: Message) -> None:
    requeue(lab, message)
    assert lab.take().id == message.id


def exhaust(lab: Lab, message: Message) -> None:
    lab.contents.move([message.id], to="dead")


def replay(lab: Lab, message: Message) -> None:
    exhaust(lab, message)
    assert lab.contents.replay([message.id]) == {message.id: "MOVED"}


def archive(lab: Lab, message: Message) -> None:
    lab.contents.move([message.id], to="archived")


EVENTS: dict[str, Act] = {
    "acknowledged": ack,
    "nacked": nack,
    "requeued": requeue,
    "taken by another": requeue_and_take,
    "dead-lettered": exhaust,
    "replayed": replay,
    "archived": archive,
}


@pytest.mark.parametrize("late", [ack, nack, touch])
@pytest.mark.parametrize("event", EVENTS)
def test_late_consumer_is_refused_and_nothing_is_written(lab: Lab, event: str, late: Act) -> None:
    lab.queue.enqueue("job", [1])
    message = lab.take()
    EVENTS[event](lab, message)
    before = lab.dump()

    with pytest.raises(LockLost):
        late(lab, message)

    assert lab.dump() == before


@pytest.mark.parametrize("late", [ack, nack, touch])
def test_wrong_token_is_refused_and_nothing_is_written(lab: Lab, late: Act) -> None:
    lab.queue.enqueue("job", id="mine")
    lab.take()
    stranger = Message(fields={"id": "mine", "lock_token": "somebody-else"}, payload_json=None)  # type: ignore[arg-type]
    unsigned = Message(fields={"id": "mine"}, payload_json=None)  # type: ignore[arg-type]
    before = lab.dump()

    for one in (stranger, unsigned):
        with pytest.raises(LockLost):
            late(lab, one)

    assert lab.dump() == before


@pytest.mark.parametrize("late", [ack, nack, touch])
def test_waiting_message_cannot_be_acknowledged_rejected_or_touched(lab: Lab, late: Act) -> None:
    lab.queue.enqueue("job", id="mine")
    before = lab.dump()

    with pytest.raises(LockLost):
        late(lab, Message(fields={"id": "mine"}, payload_json=None))  # type: ignore[arg-type]

    assert lab.dump() == before


def test_deleted_message_is_unknown(lab: Lab) -> None:
    lab.queue.enqueue("job", id="gone")
    message = lab.take()
    lab.contents.delete(["gone"])
    assert lab.pending("q") == []
    before = lab.dump()

    with pytest.raises(LockLost):
        ack(lab, message)
    for late in (nack, touch):
        with pytest.raises(UnknownMessage):
            late(lab, message)

    assert lab.dump() == before


def test_clients_of_the_old_service_need_no_lock_token_but_must_hold_the_message(lab: Lab) -> None:
    with Lab(lab.url, is_token_required=False) as old:
        for id in ("a", "b", "c"):
            old.queue.enqueue("job", id=id)
            old.take()
        old.queue.ack("a")
        assert old.queue.nack("b") is True
        assert old.queue.touch("c", extend_seconds=60).extended_by.total_seconds() == 60
        before = old.dump()

        for id in ("a", "b"):
            with pytest.raises(LockLost):
                old.queue.ack(id)
        with pytest.raises(LockLost):
            old.queue.ack("c", "a-wrong-token")

        assert old.dump() == before
