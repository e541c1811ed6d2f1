"""Each operation is one command of the client, and few of the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.message_queue import Message, NewMessage
from tests.services.message_queue.message_lab import Lab

Act = Callable[[Lab, Message], object]

# The commands inside the script that an operation may cost, the clock included.
OPERATIONS: dict[str, tuple[Act, int]] = {
    "enqueue": (lambda lab, _: lab.queue.enqueue("job", priority=2), 9),
    "enqueue_batch": (lambda lab, _: lab.queue.enqueue_batch([NewMessage(type="job")] * 500), 510),
    "dequeue": (lambda lab, _: lab.queue.dequeue(), 15),
    "dequeue by type": (lambda lab, _: lab.queue.dequeue(type="job"), 38),
    "ack": (lambda lab, held: lab.queue.ack(held.id, held.lock_token), 14),
    "nack": (lambda lab, held: lab.queue.nack(held.id, held.lock_token), 14),
    "touch": (lambda lab, held: lab.queue.touch(held.id, held.lock_token), 7),
    "sweep": (lambda lab, _: lab.sweeper.sweep(), 4),
    "move": (lambda lab, held: lab.contents.move([held.id], to="archived"), 11),
    "replay": (lambda lab, _: lab.contents.replay(["dead"]), 14),
    "delete": (lambda lab, held: lab.contents.delete([held.id]), 10),
    "update": (lambda lab, _: lab.contents.update("waiting", {"payload": 1}), 13),
    "find": (lambda lab, held: lab.contents.find(held.id), 3),
    "counts": (lambda lab, _: lab.contents.counts(), 20),
    "list": (lambda lab, _: lab.contents.list("main"), 20),
    "clear": (lambda lab, _: lab.contents.clear("dead"), 10),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_one_round_trip(lab: Lab, name: str, kind: str, figure: Callable[[str], None]) -> None:
    act, most = OPERATIONS[name]

    def prepare() -> Message:
        for id in ("held", "dead", "waiting"):
            lab.queue.enqueue("job", id=id)
        lab.contents.move(["dead"], to="dead")
        return lab.take()

    act(lab, prepare())  # loads the script
    lab.client.flushall()
    held = prepare()
    lab.client.config_resetstat()
    act(lab, held)

    # What else clients send is this test's own: flushall, config.
    commands = dict(lab.commands())
    assert commands.pop("evalsha") == 1
    for own in ("config|resetstat", "info"):
        commands.pop(own, None)
    assert sum(commands.values()) <= most, commands
    if kind == "valkey":
        figure(f"message queue: {name} is 1 round trip and {sum(commands.values())} commands")
