"""What one operation costs: round trips, counted on the wire, and commands, as the server counted them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from benchmarks.harness import Table, WrongResult, expect
from benchmarks.message_queue.queues import BATCH, EXPIRED_TIMEOUT, LEVELS, Queue, connect, ids, messages
from queue_manager.core.redis_client import CLIENT_OPTIONS
from services.message_queue import Message, server_url

HISTORY_LENGTH = 101  # acknowledged messages that fill the history, so that each further one removes an old one
NOT_OURS = ("info", "config|resetstat")


class CountingConnection(redis.Connection):
    """Counts what it sends: a pipeline once, as it is one round trip."""

    sent = 0

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        type(self).sent += 1
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class Cost:
    round_trips: int
    scripts: int
    commands: int
    """Of those that the server carried out, in scripts and otherwise."""


class _Meter:
    """Counts what an operation costs that uses its `client`."""

    def __init__(self) -> None:
        pool = redis.ConnectionPool.from_url(server_url(), connection_class=CountingConnection, **CLIENT_OPTIONS)
        self.client = redis.Redis(connection_pool=pool)
        self._observer = connect()

    def cost(self, operation: Callable[[], object]) -> Cost:
        self._observer.config_resetstat()
        before = CountingConnection.sent
        operation()
        sent = CountingConnection.sent - before
        told: dict[str, Any] = self._observer.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): int(about["calls"]) for name, about in told.items()}
        scripts = calls.pop("evalsha", 0)
        return Cost(
            round_trips=sent,
            scripts=scripts,
            commands=sum(count for name, count in calls.items() if name not in NOT_OURS),
        )


def costs() -> Table:
    """Measure every operation, and ticks of both kinds. Raises `WrongResult` for an operation of two round trips."""
    meter = _Meter()
    meter.client.flushall()
    rows = []
    for name, operation in _operations(meter.client):
        cost = meter.cost(operation)
        expect(f"round trips and scripts of {name}", (cost.round_trips, cost.scripts), (1, 1))
        rows.append(_row(name, cost))
    rows += [_row(name, meter.cost(tick)) for name, tick in _ticks(meter.client)]
    return Table(
        caption="Round trips, counted on the wire, and commands, counted by the server; a script is one of the former:",
        headings=["operation", "round trips", "scripts", "commands in all"],
        rows=rows,
    )


def _row(name: str, cost: Cost) -> list[str]:
    return [name, f"{cost.round_trips:,}", f"{cost.scripts:,}", f"{cost.commands:,}"]


def _operations(client: redis.Redis) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every operation of producers and consumers, each to be carried out once before the next is taken."""
    queue, lowest = Queue("queue", client), Queue("lowest", client)
    given, taken = queue.messages, _steady(queue)
    yield "enqueue", lambda: given.enqueue("send_mail", {"to": "ada@example.org"})
    yield f"enqueue {BATCH} at once", lambda: queue.fill(messages(BATCH, prefix="batch"))
    yield f"dequeue, first of {LEVELS} priorities", given.dequeue
    lowest.fill(messages(2, levels=1))
    lowest.messages.dequeue()  # makes the groups of all streams
    yield f"dequeue, last of {LEVELS} priorities", lowest.messages.dequeue
    yield "dequeue by type", lambda: given.dequeue(type="send_mail")
    yield "touch", lambda: given.touch(taken[0].id, taken[0].lock_token)
    yield "nack", lambda: given.nack(taken[0].id, taken[0].lock_token)
    yield "acknowledge", lambda: given.ack(taken[1].id, taken[1].lock_token)


def _steady(queue: Queue) -> list[Message]:
    """Bring a queue to the state that lasts: every script is loaded and the history full. Return held messages."""
    given = queue.messages
    queue.fill(messages(HISTORY_LENGTH + 3 * LEVELS))
    for _ in range(HISTORY_LENGTH):
        _ack(queue, _take(queue))
    given.dequeue(type="send_mail")
    nacked, *held = [_take(queue) for _ in range(3)]
    given.touch(nacked.id, nacked.lock_token)
    given.nack(nacked.id, nacked.lock_token)
    return held


def _ticks(client: redis.Redis) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a sweep of ours and a tick of polling, idle and with something to do."""
    for name, tick in (("sweep", Queue.sweep), ("tick of polling", _poll)):
        client.flushall()
        queue = Queue("queue", client)
        queue.fill(messages(LEVELS))
        queue.take_all()
        tick(queue)
        yield f"{name}, {LEVELS} held, none overdue", partial(tick, queue)
        queue.fill(messages(BATCH, ack_timeout=EXPIRED_TIMEOUT, prefix="overdue"))
        queue.let_expire()
        yield f"{name}, {BATCH} overdue", partial(tick, queue)
        expect("messages requeued", {id for id, _ in queue.take_all()}, set(ids(BATCH, prefix="overdue")))


def _poll(queue: Queue) -> list[str]:
    return queue.polling.tick()


def _take(queue: Queue) -> Message:
    message = queue.messages.dequeue()
    if message is None:
        raise WrongResult("no message waits")
    return message


def _ack(queue: Queue, message: Message) -> None:
    queue.messages.ack(message.id, message.lock_token)
