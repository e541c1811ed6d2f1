"""Timers of tasks with an ETA follow the database server's clock, also when it is set meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state
from kombu.asynchronous import timer as kombu_timer
from kombu.asynchronous.timer import Timer

from queue_manager.batching import eta, strategy
from queue_manager.core.clock import hours, seconds
from queue_manager.worker.database_pause import DatabasePause
from tests.rooms import T0


class Request(SimpleNamespace):
    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class HandTimer(Timer):
    """Celery's timer, whose clock a test moves."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def enter_after(self, secs: float, entry: Any, priority: int = 0, time: Any = None) -> Any:
        return self.enter_at(entry, self._worker.now + secs, priority)


class Worker:
    """Celery's timer, and the two clocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.server_is_ahead = 0.0, timedelta(0)
        self.applied: list[float] = []
        self.scheduled: set[Request] = set()
        self.timer = HandTimer(self)
        self.fired = 0
        for module in (eta, kombu_timer):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(eta, "estimated_now", lambda: T0 + seconds(self.now) + self.server_is_ahead)
        monkeypatch.setattr(state, "scheduled_requests", self.scheduled)
        eta._offsets.forget()
        self.step = eta.EtaTimers(self)
        self.step.start(self)

    def receive(self, after: float) -> Request:
        """Receive a task as Celery's strategy does."""
        one = Request(eta=T0 + seconds(after))
        at = eta.timer_time(one.eta)
        one._eta_timer_entry = self.timer.call_at(at, self._apply, (one,), priority=6)
        self.scheduled.add(one)
        return one

    def _apply(self, request: Request) -> None:
        self.scheduled.discard(request)
        self.applied.append(self.now)

    def run_until(self, end: float) -> None:
        """Fire the timers until then; the clock of the timers stands while they do."""
        for delay, entry in self._turns():
            if entry is not None:
                self.fired += 1
                entry()
            elif self.now + delay > end:
                break
            else:
                self.now += delay
        self.now = end

    def _turns(self) -> Iterator[tuple[float, Any]]:
        yield from kombu_timer.Timer.__iter__(self.timer, nowfun=lambda: self.now)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    yield Worker(monkeypatch)
    eta._offsets.forget()


@pytest.mark.parametrize("after", [-1.0, 3.0, 12.0, 300.0])
def test_task_is_applied_at_its_eta(after: float, worker: Worker) -> None:
    worker.receive(after)
    worker.run_until(400)
    assert worker.applied == [pytest.approx(max(after, 0), abs=0.001)]


@pytest.mark.parametrize("jump", [-hours(1), hours(1), -seconds(5)])
def test_task_received_while_the_servers_clock_was_wrong_is_applied_soon_after_it_is_right(
    jump: timedelta, worker: Worker
) -> None:
    worker.server_is_ahead = jump
    worker.receive(20)
    worker.run_until(2)
    worker.server_is_ahead = timedelta(0)
    worker.run_until(100)
    (at,) = worker.applied
    assert at == pytest.approx(0 if jump > timedelta(0) else 20, abs=eta.CLOCK_CHECK_INTERVAL)


@pytest.mark.parametrize("jump", [-seconds(30), seconds(30)])
def test_waiting_task_follows_an_adjusted_clock(jump: timedelta, worker: Worker) -> None:
    worker.receive(100)
    worker.run_until(7)
    worker.server_is_ahead = jump
    worker.run_until(200)
    assert worker.applied == [pytest.approx(100 - jump.total_seconds(), abs=0.001)]


GREEN_POOL = """
import sys, time
from importlib import import_module
from types import SimpleNamespace

from celery.worker import state

from queue_manager.batching import eta
from queue_manager.core.clock import local_now, seconds

class Request(SimpleNamespace):
    __hash__ = object.__hash__

def receive(after):
    one = Request(after=after, eta=local_now() + seconds(after))
    one._eta_timer_entry = timer.call_at(eta.timer_time(one.eta), apply, (one,), priority=6)
    state.scheduled_requests.add(one)
    return one

def apply(one):
    state.scheduled_requests.discard(one)
    applied.append(one.after)

timer, applied, ahead = import_module(f"celery.concurrency.{sys.argv[1]}").Timer(), [], 0
eta.estimated_now = lambda: local_now() + seconds(ahead)
requests = [receive(after) for after in (*range(-20, 0), *range(3600, 3620))]
ahead = 3620
eta.check(timer)
timer.call_at(time.monotonic() + 0.5, applied.append, ("end",))  # after all others, which are due
while "end" not in applied:
    time.sleep(0.01)
print(sorted(applied[:-1]) == [one.after for one in requests])
"""
PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}


@pytest.mark.parametrize("pool", PATCHES)
def test_tasks_of_a_green_pool_are_applied_once_when_the_clock_is_adjusted(pool: str) -> None:
    program = [sys.executable, "-c", PATCHES[pool] + GREEN_POOL, pool]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True\n", done.stderr


def test_a_waiting_task_fires_no_timer_before_its_eta(worker: Worker) -> None:
    """The event loop fires ten timers in a turn: others would wait."""
    for number in range(200):
        worker.receive(8 + number / 100)
    worker.run_until(7)
    assert worker.fired == 1  # the check
    worker.run_until(12)
    assert len(worker.applied) == 200


def test_a_worker_that_reconnects_checks_the_clock_no_more_often(worker: Worker) -> None:
    for _ in range(3):
        worker.step.stop(worker)
        worker.step.start(worker)
    worker.run_until(7)
    assert worker.fired == 1


@pytest.mark.parametrize("step", [eta.EtaTimers, DatabasePause])
def test_a_worker_can_lose_its_connection_before_its_timers_begin(step: Any) -> None:
    consumer = SimpleNamespace()
    step(consumer).stop(consumer)


def test_a_rescheduled_timer_can_be_canceled(worker: Worker) -> None:
    one = worker.receive(60)
    worker.server_is_ahead = seconds(10)
    worker.run_until(6)
    worker.timer.cancel(one._eta_timer_entry)
    worker.run_until(100)
    assert worker.applied == []


def test_a_task_whose_eta_has_passed_is_applied_in_the_same_turn_of_the_event_loop() -> None:
    """After its timers the loop polls, for up to a second, before it calls what is ready.

    The task is reserved, so that the heartbeat renews its lease, and no longer counts as prefetched for its ETA.
    """
    asked: list[Any] = []
    prefetched = [1]
    worker = SimpleNamespace(_quick_acquire=asked.append)
    hub = SimpleNamespace(call_soon=lambda act: None)
    qos = SimpleNamespace(decrement_eventually=prefetched.pop)
    pool = SimpleNamespace(num_processes=1)
    task = SimpleNamespace(time_limit=None, soft_time_limit=None)
    consumer = strategy._BatchingConsumer(task, SimpleNamespace(controller=worker, hub=hub, qos=qos, pool=pool))
    request = Request(id="one", request_dict={})
    state.task_scheduled(request)
    try:
        consumer.apply_eta_task(request)
        assert request in state.reserved_requests
        assert request not in state.scheduled_requests
    finally:
        state.task_ready(request)
    assert len(asked) == 1
    assert prefetched == []
