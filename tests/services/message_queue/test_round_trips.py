"""Each operation is one command of the client, and few of the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.message_queue import Message, NewMessage
from tests.services.message_queue.message_lab import Lab

Act = Callable[[Lab, Message], object]

# The commands inside the script that an operation may cost, the clock included.
OPERATIONS: dict[str, tuple[Act, int]] = {
    "enqueue": (lambda lab, _: lab.queue.enqueue("job", priority=2), 7),
    "enqueue_batch": (lambda lab, _: lab.queue.enqueue_batch([NewMessage(type="job")] * 500), 510),
    "dequeue": (lambda lab, _: lab.queue.dequeue(), 9),
    "dequeue by type": (lambda lab, _: lab.queue.dequeue(type="job"), 38),
    "ack": (lambda lab, held: lab.queue.ack(held.id, held.lock_token), 13),
    "nack": (lambda lab, held: lab.queue.nack(held.id, held.lock_token), 12),
    "touch": (lambda lab, held: lab.queue.touch(held.id, held.lock_token), 7),
    "sweep": (lambda lab, _: lab.sweeper.sweep(), 4),
    "move": (lambda lab, held: lab.contents.move([held.id], to="archived"), 11),
    "replay": (lambda lab, _: lab.contents.replay(["dead"]), 14),
    "delete": (lambda lab, held: lab.contents.delete([held.id]), 10),
    "update": (lambda lab, _: lab.contents.update("waiting", {"payload": 1}), 13),
    "find": (lambda lab, held: lab.contents.find(held.id), 3),
    "counts": (lambda lab, _: lab.contents.counts(), 20),
    "list": (lambda lab, _: lab.contents.list("main"), 20),
    "clear": (lambda lab, _: lab.clear("dead"), 10),
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


def test_message_of_a_batch_costs_few_commands(lab: Lab, kind: str, figure: Callable[[str], None]) -> None:
    def cycle() -> tuple[float, float]:
        lab.queue.enqueue_batch([NewMessage(type="job")] * 100)
        lab.client.config_resetstat()
        received = lab.queue.receive_many(100)
        delivered = commands_of_scripts(lab)
        lab.client.config_resetstat()
        lab.queue.ack_many([(message.id, message.lock_token) for message in received])
        return delivered / 100, commands_of_scripts(lab) / 100

    cycle()  # now the history is full
    delivery, ack = cycle()
    assert delivery <= 0.4
    assert ack <= 3.2
    figure(f"message queue on {kind}: a message of a batch of 100 is {delivery} and {ack} commands")


def test_message_whose_ack_removes_the_oldest_of_the_history(lab: Lab) -> None:
    lab.queue.enqueue_batch([NewMessage(type="job")] * 101)
    *others, last = [lab.take() for _ in range(101)]
    lab.queue.ack_many([(message.id, message.lock_token) for message in others])
    lab.client.config_resetstat()
    lab.queue.ack(last.id, last.lock_token)
    assert commands_of_scripts(lab) <= 16
    assert lab.client.xlen("q_acknowledged") == 100
    assert lab.client.hlen("q_metadata") == 100


def commands_of_scripts(lab: Lab) -> int:
    """Return how many commands scripts have called since `config_resetstat`."""
    return sum(
        count for name, count in lab.commands().items() if name not in ("evalsha", "eval", "config|resetstat", "info")
    )
