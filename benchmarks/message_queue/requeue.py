"""Requeue: messages per second, and what a tick costs while many messages are held that are not overdue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

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
from benchmarks.release import RELEASE, checked_out
from services.message_queue import NewMessage

OVERDUE = 10_000
OVERDUE_BEHIND = 100
HELD = (10_000, 100_000)
ONE_HOUR = 3600
ENDLESS = 10_000  # attempts, so that what is taken again for every round never becomes a dead letter

# In a process of the earlier release: a sweep for each line that it reads.
SWEEPS = """
import json, sys
from benchmarks.message_queue.queues import Queue, connect

queue = Queue("queue", connect())
for line in sys.stdin:
    print(json.dumps(queue.sweep()), flush=True)
"""


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
    ways = {"deadlines, ours": queue.sweep, "polling": queue.polling.drain}
    with checked_out() as directory, _sweeps_of(directory) as sweep:
        if sweep is not None:
            ways[RELEASE] = sweep
        return bench.compare(
            "message queue, requeue",
            f"{overdue:,} overdue messages of {LEVELS} priorities, and nothing else",
            [Way(name=name, run=run, check=check, prepare=held.restore) for name, run in ways.items()],
            figures=[
                Figure(heading="µs each", of=lambda run: run.seconds / overdue * 1e6),
                Figure(heading="messages/s", of=lambda run: overdue / run.seconds),
                Figure(heading="server µs each", of=lambda run: run.server_seconds / overdue * 1e6),
            ],
            server_clock=lambda: server_clock(queue.client),
            notes=[
                f"Ours takes {BATCH} in a call. Polling ticks without a pause here; with its pause of 5 s it",
                f"requeues at most {per_tick:,} in a tick, so {per_tick // 5} messages/s.",
            ],
        )


@contextmanager
def _sweeps_of(release: Path | None) -> Iterator[Callable[[], list[str]] | None]:
    """Yield a function by which a process of an earlier release takes back everything that is overdue."""
    if release is None:
        yield None
        return
    command = [sys.executable, "-c", SWEEPS]
    env = {**os.environ, "PYTHONPATH": str(release)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        lines, answers = cast(IO[str], process.stdin), cast(IO[str], process.stdout)

        def sweep() -> list[str]:
            print(file=lines, flush=True)
            requeued: list[str] = json.loads(answers.readline())
            return requeued

        sweep()  # the first one also imports; each round begins with the same messages
        yield sweep


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
