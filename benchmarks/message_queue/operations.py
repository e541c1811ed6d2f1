"""Enqueue, dequeue and acknowledge, next to a bare PING: with one client process and with eight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.harness import Bench, Figure, Result, Table, Way, expect
from benchmarks.message_queue.clients import Clients, Done, Held
from benchmarks.message_queue.costs import costs
from benchmarks.message_queue.queues import BATCH, LEVELS, Queue, Snapshot, connect, ids, messages, server_clock

MESSAGES = 8_000


def one_client(bench: Bench) -> Result:
    return _run(bench, 1, tables=[costs()])


def eight_clients(bench: Bench) -> Result:
    return _run(bench, 8)


def _run(bench: Bench, processes: int, *, tables: list[Table] | None = None) -> Result:
    count = bench.sized(MESSAGES)
    queue = Queue("queue", connect())
    with Clients(processes) as clients:
        trial = _Trial(queue, clients, count)
        return bench.compare(
            f"message queue, {processes} client process{'es' if processes > 1 else ''}",
            f"{count:,} messages of {LEVELS} priorities, in all",
            trial.ways(),
            figures=[
                Figure(heading="µs each", of=lambda run: run.result.seconds / count * 1e6),
                Figure(heading="messages/s", of=lambda run: count / run.result.seconds),
                Figure(heading="server µs each", of=lambda run: run.server_seconds / count * 1e6),
            ],
            compared="times a PING",
            server_clock=partial(server_clock, queue.client),
            tables=tables or [],
            notes=["A PING is what a round trip costs at the least, with this client on this machine."],
        )


@dataclass
class _Trial:
    """One number of messages, on their way through the queue."""

    queue: Queue
    clients: Clients
    count: int

    def __post_init__(self) -> None:
        self.queue.client.flushall()
        self._empty = Snapshot(self.queue.client)
        self.queue.fill(messages(self.count))
        self._waiting = Snapshot(self.queue.client)
        self._held = self.queue.take_all()
        self._taken = Snapshot(self.queue.client)

    def ways(self) -> list[Way]:
        each = self.clients.count
        by_turns: list[Held] = [self._held[number::each] for number in range(each)]
        everything = [self.count] * each

        def way(name: str, run: Callable[[], Done], check: Callable[[Done], None], before: Snapshot) -> Way:
            return Way(name=name, run=run, check=check, prepare=before.restore)

        do = self.clients.do
        return [
            way("PING", lambda: do("ping", [self.count // each] * each), self._pinged, self._empty),
            way("enqueue", lambda: do("enqueue", everything), self._enqueued, self._empty),
            way(f"enqueue {BATCH} at once", lambda: do("enqueue_batch", everything), self._enqueued, self._empty),
            way("dequeue", lambda: do("dequeue", everything), self._dequeued, self._waiting),
            way("acknowledge", lambda: do("ack", by_turns), self._acknowledged, self._taken),
        ]

    def _pinged(self, done: Done) -> None:
        expect("answers", sum(done.answers), self.count)

    def _enqueued(self, done: Done) -> None:
        self.queue.expect_waiting(ids(self.count))

    def _dequeued(self, done: Done) -> None:
        taken = [id for answer in done.answers for id, _ in answer]
        expect("messages taken, each once", len(taken), self.count)
        expect("messages taken", set(taken), set(ids(self.count)))
        expect("messages held", self.queue.pending(), self.count)

    def _acknowledged(self, done: Done) -> None:
        expect("messages that are left", list(self.queue.entries()), [])
        expect("messages held", self.queue.pending(), 0)
        expect("messages acknowledged", self._acknowledged_in_all(), self.count)

    def _acknowledged_in_all(self) -> int:
        return int(self.queue.client.get("queue:stats:total_acknowledged") or 0)
