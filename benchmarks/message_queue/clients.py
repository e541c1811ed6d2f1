"""Processes that enqueue, dequeue and acknowledge, each with a client of its own; they begin together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Literal, Self

from benchmarks.message_queue.queues import Queue, connect, messages
from services.message_queue import NewMessage

Verb = Literal["ping", "enqueue", "enqueue_batch", "dequeue", "ack"]
Held = list[tuple[str, str]]
"""Ids of messages and the tokens that hold them."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """What the clients did: the seconds from the first one's begin to the last one's end, and their answers."""

    seconds: float
    answers: list[Any]


class Clients:
    """A number of client processes, as long as the `with` lasts."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._lines: list[Connection] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        processes = get_context("spawn")  # a fork would take the threads' locks along
        for number in range(self.count):
            ours, theirs = processes.Pipe()
            process = processes.Process(target=_serve, args=[theirs, number, self.count], daemon=True)
            process.start()
            self._stack.callback(process.join)
            self._stack.callback(ours.send, None)
            self._lines.append(ours)
        self.do("ping", [1] * self.count)  # they are ready when they answer
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def do(self, verb: Verb, shares: Sequence[Any]) -> Done:
        """Let each client do its share, all at once."""
        for line, share in zip(self._lines, shares, strict=True):
            line.send((verb, share))
        began, ended, answers = zip(*(line.recv() for line in self._lines), strict=True)
        return Done(seconds=max(ended) - min(began), answers=list(answers))


def _serve(line: Connection, number: int, of: int) -> None:
    """Do what is asked until `None` is."""
    queue = Queue("queue", connect())
    verbs: dict[str, Callable[[Any], Any]] = {
        "ping": lambda count: _ping(queue, count),
        "enqueue": lambda count: _enqueue(queue, list(messages(count))[number::of]),
        "enqueue_batch": lambda count: queue.fill(list(messages(count))[number::of]),
        "dequeue": lambda _: queue.take_all(),
        "ack": lambda held: _ack(queue, held),
    }
    while (asked := line.recv()) is not None:
        verb, share = asked
        began = time.monotonic()
        answer = verbs[verb](share)
        line.send((began, time.monotonic(), answer))


def _ping(queue: Queue, count: int) -> int:
    return sum(queue.client.ping() is True for _ in range(count))


def _enqueue(queue: Queue, of_it: Sequence[NewMessage]) -> None:
    for one in of_it:
        queue.messages.enqueue(one.type, one.payload, priority=one.priority, id=one.id)


def _ack(queue: Queue, held: Held) -> None:
    for id, token in held:
        queue.messages.ack(id, token)
