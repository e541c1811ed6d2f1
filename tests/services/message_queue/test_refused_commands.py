"""A server that refuses a command in the middle of a script, which it does not undo: no message is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from services.message_queue import Message, MessageState
from tests.services.message_queue.message_lab import Lab

IN_PROCESSING: dict[str, Callable[[Lab, Message], object]] = {
    "nack": lambda lab, held: lab.queue.nack(held.id, held.lock_token),
    "last nack": lambda lab, held: lab.queue.nack(held.id, held.lock_token),
    "move": lambda lab, held: lab.contents.move([held.id], to="dead", reason="by hand"),
}
WAITING: dict[str, Callable[[Lab], object]] = {
    "move": lambda lab: lab.contents.move(["m"], to="archived", reason="by hand"),
    "update": lambda lab: lab.contents.update("m", {"priority": 2}),
    "dequeue by type": lambda lab: lab.queue.dequeue(type="job"),
}


@contextmanager
def rights(lab: Lab, *rules: str) -> Iterator[None]:
    """Give the user of the queue these rights, and all at the end."""
    lab.client.execute_command("ACL", "SETUSER", "default", *rules)
    try:
        yield
    finally:
        lab.client.execute_command("ACL", "SETUSER", "default", "allkeys", "allchannels", "+@all")


def copies(lab: Lab) -> int:
    """Return how many entries of any stream have the message."""
    streams = [key for key in lab.client.scan_iter(_type="stream") if not key.endswith(b":events")]
    return sum(b'"id":"m"' in entry.get(b"data", b"") for key in streams for _, entry in lab.client.xrange(key))


@pytest.mark.parametrize("name", IN_PROCESSING)
def test_refused_publish_loses_no_message_in_processing(lab: Lab, name: str) -> None:
    lab.queue.enqueue("job", id="m", max_attempts=1 if name == "last nack" else None)
    held = lab.take()
    with rights(lab, "resetchannels"), pytest.raises(redis.ResponseError):
        IN_PROCESSING[name](lab, held)
    assert copies(lab) == 1
    assert lab.ids("main" if name == "nack" else "dead") == ["m"]


@pytest.mark.parametrize("name", WAITING)
def test_refused_publish_loses_no_waiting_message(lab: Lab, name: str) -> None:
    lab.queue.enqueue("job", id="m")
    with rights(lab, "resetchannels"), pytest.raises(redis.ResponseError):
        WAITING[name](lab)
    assert copies(lab) == 1
    places: dict[str, MessageState] = {"move": "archived", "update": "main", "dequeue by type": "processing"}
    assert lab.ids(places[name]) == ["m"]


@pytest.mark.parametrize("name", ["last nack", "move"])
def test_refused_stream_write_loses_no_message(lab: Lab, name: str) -> None:
    lab.queue.enqueue("job", id="m", max_attempts=1)
    held = lab.take()
    with rights(lab, "resetkeys", "~q", "~q_metadata", "~q_p*", "~q:*"), pytest.raises(redis.ResponseError):
        IN_PROCESSING[name](lab, held)
    assert copies(lab) == 1


@pytest.mark.parametrize(
    ("name", "refused"), [("move", "q_archived"), ("update", "q_p2"), ("dequeue by type", "q_typed")]
)
def test_key_of_another_type_loses_no_message(lab: Lab, name: str, refused: str) -> None:
    lab.queue.enqueue("job", id="m")
    lab.client.set(refused, "of another program")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        WAITING[name](lab)
    assert copies(lab) == 1
