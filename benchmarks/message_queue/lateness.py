"""Lateness: how long after its deadline a message is back in its queue, by the server's clock."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.harness import Bench, Figure, Result, Way, expect, percentile
from benchmarks.message_queue.queues import PERIOD, Queue, connect, ids, messages

MESSAGES = 1_000
FIRST, LAST, LAST_QUICK = 0.5, 9.5, 4.5  # seconds from the delivery to the deadlines
SLACK = 5.0  # seconds after the last deadline at which it is given up


def run(bench: Bench) -> Result:
    trial = _Trial(bench.sized(MESSAGES), LAST_QUICK if bench.is_quick else LAST)
    return bench.compare(
        "message queue, lateness",
        f"{trial.count:,} messages with deadlines at random over {trial.last - FIRST:g} s, requeued as they pass",
        [
            Way(name="at the deadline, ours", run=trial.sweep, check=trial.check, prepare=trial.take),
            Way(name="polling every 5 s", run=trial.poll, check=trial.check, prepare=trial.take),
        ],
        figures=[
            Figure(heading="p99, ms", of=lambda run: percentile(run.result, 99)),
            Figure(heading="p50, ms", of=lambda run: percentile(run.result, 50)),
            Figure(heading="most, ms", of=lambda run: max(run.result)),
        ],
        rounds=1 if bench.is_quick else 3,
        warm_up=False,
        notes=[
            "From the deadline to the entry that the requeued message was given. Ours sweeps when the last sweep says",
            "that the next one is needed: at the next deadline, and no sooner than after 50 ms.",
        ],
    )


class _Trial:
    """Messages whose deadlines pass while somebody watches them."""

    def __init__(self, count: int, last: float) -> None:
        self.count, self.last = count, last
        self._queue = Queue("lateness", connect())
        self._deadlines: dict[str, float] = {}
        self._ends = 0.0

    def take(self) -> None:
        chance = random.Random(20)
        self._queue.client.flushall()
        self._queue.fill(
            replace(one, ack_timeout=round(chance.uniform(FIRST, self.last), 3)) for one in messages(self.count)
        )
        taken = list(iter(self._queue.messages.dequeue, None))
        self._deadlines = {message.id: (message.deadline_at or 0) * 1000 for message in taken}
        self._ends = time.monotonic() + self.last + SLACK

    def sweep(self) -> list[float]:
        """Sweep as the product does: when the last sweep said so, else after a period."""

        def sweep() -> tuple[int, float]:
            swept = self._queue.sweeper.sweep(can_schedule=True)
            return len(swept.requeued), (swept.next_sweep_in or PERIOD).total_seconds()

        return self._watch(sweep)

    def poll(self) -> list[float]:
        time.sleep(PERIOD.total_seconds())
        return self._watch(lambda: (len(self._queue.polling.tick()), PERIOD.total_seconds()))

    def _watch(self, look: Callable[[], tuple[int, float]]) -> list[float]:
        """Look until everything was requeued; return how late each message was, in ms."""
        missing = self.count
        while missing > 0 and time.monotonic() < self._ends:
            requeued, pause = look()
            missing -= requeued
            time.sleep(pause if missing > 0 else 0)
        return [at - self._deadlines[id] for at, id in self._queue.entries()]

    def check(self, lateness: list[float]) -> None:
        self._queue.expect_waiting(ids(self.count))
        expect("messages requeued before their deadline", [late for late in lateness if late < -1], [])
