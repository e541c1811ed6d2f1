"""Enqueue, dequeue and acknowledge with one client, next to BullMQ in Node and plain Redis Streams, which keep less."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, Figure, Result, Way, expect
from benchmarks.message_queue.queues import BATCH, Queue, connect, messages, server_clock
from services.message_queue import Message, NewMessage, server_url
from tests.predecessors.node_process import NodeProcess, node

MESSAGES = 5_000
OPERATIONS = ("enqueue", "dequeue", "acknowledge")
MISSING = "BullMQ, which `make bench` installs: the message queue was not compared with it"
NODE_DIRECTORY = Path(__file__).resolve().parents[1] / "node"
STREAM, GROUP, CONSUMER = "plain", "plain_group", "consumer"
WITHIN = 120.0  # seconds

Do = Callable[[str, int], int]
"""Carry out an operation a number of times; return how often it was done."""


def is_installed() -> bool:
    return (NODE_DIRECTORY / "node_modules" / "bullmq").is_dir()


def run(bench: Bench, *, operation: str) -> Result:
    """Compare one operation. The others before it, in `OPERATIONS`, are carried out first and not timed."""
    count = bench.sized(MESSAGES)
    queue = Queue("queue", connect())
    with node(str(NODE_DIRECTORY / "bullmq_operations.mjs"), REDIS_URL=server_url()) as program:
        expect("the first line of BullMQ's program", program.next(), "ready")
        ways: dict[str, Do] = {
            "ours": _Ours(queue),
            "BullMQ": partial(_bullmq, program),
            "plain Streams": _Streams(queue),
            f"ours, {BATCH} at once": _OursAtOnce(queue),
        }

        def prepare(do: Do) -> None:
            queue.client.flushall()
            for earlier in OPERATIONS[: OPERATIONS.index(operation)]:
                do(earlier, count)

        return bench.compare(
            f"message queue, {operation} with one client",
            f"{count:,} messages of one priority",
            [
                Way(
                    name=name,
                    run=partial(do, operation, count),
                    check=partial(expect, f"messages of {name}", expected=count),
                    prepare=partial(prepare, do),
                )
                for name, do in ways.items()
            ],
            figures=[
                Figure(heading="server µs each", of=lambda run: run.server_seconds / count * 1e6),
                Figure(heading="messages/s", of=lambda run: count / run.seconds),
            ],
            compared="times ours, in server time",
            server_clock=partial(server_clock, queue.client),
            notes=[
                "The processor time of the server. BullMQ's client is Node, the others' is Python. Plain Streams keep",
                "no deadlines, attempts, history or events.",
            ],
        )


def _bullmq(program: NodeProcess, operation: str, count: int) -> int:
    program.send(f"{operation} {count}")
    return int(program.next(within=WITHIN)["count"])


class _Ours:
    def __init__(self, queue: Queue) -> None:
        self._queue, self._held = queue, list[Message]()

    def __call__(self, operation: str, count: int) -> int:
        given = list(messages(count, levels=1))
        if operation == "enqueue":
            self._held = []
            return sum(self.enqueue(given[first : first + self.size]) for first in range(0, count, self.size))
        if operation == "dequeue":
            while received := self.receive():
                self._held += received
            return len(self._held)
        held = self._held
        return sum(self.ack(held[first : first + self.size]) for first in range(0, len(held), self.size))

    size = 1

    def enqueue(self, given: Sequence[NewMessage]) -> int:
        return sum(added.is_new for added in self._queue.messages.enqueue_batch(given))

    def receive(self) -> list[Message]:
        message = self._queue.messages.dequeue()
        return [message] if message else []

    def ack(self, held: Sequence[Message]) -> int:
        (message,) = held
        self._queue.messages.ack(message.id, message.lock_token)
        return 1


class _OursAtOnce(_Ours):
    size = BATCH

    def receive(self) -> list[Message]:
        return self._queue.messages.receive_many(BATCH)

    def ack(self, held: Sequence[Message]) -> int:
        return sum(self._queue.messages.ack_many([(message.id, message.lock_token) for message in held]))


class _Streams:
    def __init__(self, queue: Queue) -> None:
        self._client, self._held = queue.client, list[bytes]()

    def __call__(self, operation: str, count: int) -> int:
        if operation == "enqueue":
            for message in messages(count):
                self._client.xadd(STREAM, {"data": json.dumps(message.payload)})
            return int(self._client.xlen(STREAM))
        if operation == "dequeue":
            self._client.xgroup_create(STREAM, GROUP, "0")
            self._held = [self._read() for _ in range(count)]
            return len(set(self._held))
        for sid in self._held:
            self._client.xack(STREAM, GROUP, sid)
            self._client.xdel(STREAM, sid)
        return count - int(self._client.xlen(STREAM))

    def _read(self) -> bytes:
        answer: Any = self._client.xreadgroup(GROUP, CONSUMER, {STREAM: ">"}, count=1)
        [(_, [(sid, _)])] = answer
        return bytes(sid)
