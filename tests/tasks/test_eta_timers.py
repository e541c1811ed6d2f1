"""Timers of tasks with an ETA follow the database server's clock, also when it is set meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from queue_manager.batching import strategy
from queue_manager.core.clock import hours, seconds
from tests.rooms import T0


class Worker:
    """A consumer with a timer, and the two clocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.server_is_ahead = 0.0, timedelta(0)
        self.timer: tuple[float, Callable[..., None], tuple[Any, ...]] | None = None
        self.applied: list[float] = []
        monkeypatch.setattr(strategy, "monotonic", lambda: self.now)
        monkeypatch.setattr(strategy, "estimated_now", lambda: T0 + seconds(self.now) + self.server_is_ahead)
        own = SimpleNamespace(
            timer=SimpleNamespace(call_at=self._call_at),
            apply_eta_task=lambda request: self.applied.append(self.now),
            _limit_post_eta=lambda request, bucket, tokens: self.applied.append(self.now),
        )
        self.consumer = strategy._ServerClockConsumer(own)

    def _call_at(self, at: float, act: Callable[..., None], arguments: tuple[Any, ...], priority: int) -> str:
        self.timer = at, act, arguments
        return "entry"

    def receive(self, request: Any, *, is_limited: bool = False) -> None:
        act = self.consumer._limit_post_eta if is_limited else self.consumer.apply_eta_task
        self._call_at(strategy._timer_time(request.eta), act, (request, "bucket", 1) if is_limited else (request,), 6)

    def run_until(self, end: float) -> None:
        while self.timer is not None and self.timer[0] <= end:
            (at, act, arguments), self.timer = self.timer, None
            self.now = max(self.now, at)
            act(*arguments)
        self.now = end


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def request(after: float) -> Any:
    return SimpleNamespace(eta=T0 + seconds(after))


@pytest.mark.parametrize("is_limited", [False, True])
@pytest.mark.parametrize("after", [-1.0, 3.0, 12.0, 300.0])
def test_task_is_applied_at_its_eta(after: float, is_limited: bool, worker: Worker) -> None:
    worker.receive(request(after), is_limited=is_limited)
    worker.run_until(400)
    (at,) = worker.applied
    assert at == pytest.approx(max(after, 0), abs=strategy.TIMER_PRECISION)


@pytest.mark.parametrize("jump", [-hours(1), hours(1), -seconds(5)])
def test_task_received_while_the_servers_clock_was_wrong_is_applied_soon_after_it_is_right(
    jump: timedelta, worker: Worker
) -> None:
    worker.server_is_ahead = jump
    worker.receive(request(20))
    worker.run_until(2)
    worker.server_is_ahead = timedelta(0)
    worker.run_until(100)
    (at,) = worker.applied
    assert at == 0 if jump > timedelta(0) else 20 <= at <= 20 + strategy.MAX_TIMER


def test_the_timer_that_was_set_again_can_be_canceled(worker: Worker) -> None:
    one = request(60)
    worker.receive(one)
    worker.run_until(6)
    assert one._eta_timer_entry == "entry"
