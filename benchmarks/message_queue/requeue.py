"""Requeue: messages per second, and what a tick costs while many messages are held that are not overdue."""

from __future__ import annotations

from benchmarks.harness import Bench, Figure, Result, Run, Way, expect
from benchmarks.message_queue.queues import (
    BATCH,
    EXPIRED_TIMEOUT,
    LEVELS,
    Queue,
    Snapshot,
    connect,
    ids,
    messages,
    server_clock,
)
from services.message_queue import NewMessage

OVERDUE = 10_000
OVERDUE_BEHIND = 100
HELD = (10_000, 100_000)
ONE_HOUR = 3600
ENDLESS = 10_000  # attempts, so that what is taken again for every round never becomes a dead letter


def throughput(bench: Bench) -> Result:
    overdue = bench.sized(OVERDUE)
    queue = Queue("queue", connect())
    queue.client.flushall()
    queue.fill(messages(overdue, ack_timeout=EXPIRED_TIMEOUT))
    expect("messages taken", queue.let_expire(), overdue)
    held = Snapshot(queue.client)

    def check(requeued: list[str]) -> None:
        expect("messages requeued, each once", len(requeued), overdue)
        expect("messages requeued", set(requeued), set(ids(overdue)))
        queue.expect_waiting(ids(overdue))

    per_tick = BATCH * LEVELS
    return bench.compare(
        "message queue, requeue",
        f"{overdue:,} overdue messages of {LEVELS} priorities, and nothing else",
        [
            Way(name="deadlines, ours", run=queue.sweep, check=check, prepare=held.restore),
            Way(name="polling", run=queue.polling.drain, check=check, prepare=held.restore),
        ],
        figures=[
            Figure(heading="µs each", of=lambda run: run.seconds / overdue * 1e6),
            Figure(heading="messages/s", of=lambda run: overdue / run.seconds),
            Figure(heading="server µs each", of=lambda run: run.server_seconds / overdue * 1e6),
        ],
        server_clock=lambda: server_clock(queue.client),
        notes=[
            f"Ours takes {BATCH} in a call. Polling ticks without a pause here; with its pause of 5 s it requeues at",
            f"most {per_tick:,} in a tick, so {per_tick // 5} messages/s.",
        ],
    )


def tick(bench: Bench) -> Result:
    fewer, more = (_Held(f"held_{held}", bench, bench.sized(held)) for held in HELD)
    fewer.queue.client.flushall()
    for held in (fewer, more):
        held.fill()
    return bench.compare(
        "message queue, one tick",
        f"{OVERDUE_BEHIND} overdue messages behind {fewer.count:,} and behind {more.count:,} that are held for an hour",
        [
            Way(name="deadlines, ours, few held", run=fewer.queue.sweep, check=fewer.check, prepare=fewer.take),
            Way(name="deadlines, ours, many held", run=more.queue.sweep, check=more.check, prepare=more.take),
            Way(
                name="polling, few held",
                run=fewer.queue.polling.tick,
                check=fewer.check_none,
                prepare=fewer.take,
            ),
            Way(name="polling, many held", run=more.queue.polling.tick, check=more.check_none, prepare=more.take),
        ],
        figures=[
            Figure(heading="ms", of=lambda run: run.seconds * 1e3),
            Figure(heading="requeued", of=_requeued),
            Figure(heading="server ms", of=lambda run: run.server_seconds * 1e3),
        ],
        rounds=9,
        server_clock=lambda: server_clock(fewer.queue.client),
        notes=[
            "All of priority 0, the cheapest case for polling: it looks at the 100 oldest of one stream, not of ten.",
            "It finds none of the overdue ones, in this tick or any other of that hour.",
        ],
    )


def _requeued(run: Run) -> float:
    return len(run.result)


class _Held:
    """A queue in which many messages are held for long, and a few behind them are overdue."""

    def __init__(self, name: str, bench: Bench, count: int) -> None:
        self.queue, self.count = Queue(name, connect()), count
        self._bench = bench

    def fill(self) -> None:
        bar = self._bench.progress.add_task(f"holding {self.count:,} messages", total=self.count)
        self.queue.fill(messages(self.count, ack_timeout=ONE_HOUR, levels=1, prefix="held"))
        self.queue.polling.create_groups()
        while self.queue.messages.dequeue() is not None:
            self._bench.progress.advance(bar)
        overdue = messages(OVERDUE_BEHIND, levels=1, prefix="overdue")
        self.queue.fill(
            NewMessage(type=one.type, payload=one.payload, ack_timeout=EXPIRED_TIMEOUT, max_attempts=ENDLESS, id=one.id)
            for one in overdue
        )

    def take(self) -> None:
        """Take what the last tick has requeued: it is overdue at once, and behind all others again."""
        self.queue.let_expire()
        expect("messages held", self.queue.pending(), self.count + OVERDUE_BEHIND)

    def check(self, requeued: list[str]) -> None:
        expect("messages requeued", sorted(requeued), sorted(ids(OVERDUE_BEHIND, prefix="overdue")))
        expect("messages held", self.queue.pending(), self.count)

    def check_none(self, requeued: list[str]) -> None:
        expect("messages that polling requeued", requeued, [])
        expect("messages held", self.queue.pending(), self.count + OVERDUE_BEHIND)
