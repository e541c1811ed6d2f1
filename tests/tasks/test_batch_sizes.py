"""A batch is as large as one process can execute in time, so that the other processes get the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.prefork import TaskPool
from celery.worker import state
from kombu.asynchronous import Hub
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from queue_manager.batching import strategy
from queue_manager.batching.strategy import MAX_BATCH_SIZE
from queue_manager.items import Verdict

PROCESSES = 4


class Request:
    """Celery's request of one item."""

    id, name, time_limits, request_dict, _payload = "1", "items", (None, None), dict[str, Any](), None
    time_start: float | None = None
    worker_pid: int | None = None
    _terminate_on_ack = None

    def __init__(self, ended: list[Any]) -> None:
        self.acknowledge = lambda: ended.append("done")

    def revoked(self) -> bool:
        return False


class Dispatcher:
    """Takes the events of tasks, of one connection to the broker."""

    enabled = True

    def __init__(self) -> None:
        self.types: list[str] = []

    def send_all(self, type: str, fields: Sequence[dict[str, Any]]) -> None:
        self.types += [type] * len(fields)


class Worker:
    """A worker's pool and event loop, of which every process executes `reached` items in time."""

    num_processes = PROCESSES
    active = True

    def __init__(self, reached: int) -> None:
        self.reached = reached
        self.rounds: list[list[int]] = []
        """The sizes of the batches that ran at the same time."""
        self.ended: list[Any] = []
        self._running: list[tuple[int, Callable[[Sequence[Any]], None]]] = []
        self._soon: list[Callable[[], None]] = []
        self._free = LaxBoundedSemaphore(PROCESSES)
        controller = SimpleNamespace(
            _quick_acquire=self._free.acquire, _quick_release=self._free.release, _process_task=self._execute_alone
        )
        self.consumer = SimpleNamespace(
            controller=controller,
            hub=SimpleNamespace(call_soon=self._soon.append),
            pool=self,
            event_dispatcher=Dispatcher(),
        )
        task = SimpleNamespace(
            name="items", batch_timeout=None, send_events=True, time_limit=None, soft_time_limit=None
        )
        self._consumer = strategy._BatchingConsumer(task, self.consumer)

    def begin(self, items: int) -> None:
        """Start items that are received together."""
        for _ in range(items):
            self._consumer.on_task_request(Request(self.ended))
        self._turn()

    def execute(self, items: int) -> None:
        """Start items that are received together, and let them end."""
        self.begin(items)
        self.end()

    def end(self) -> None:
        """Let everything end that runs or waits."""
        while self._running:
            self.rounds.append([size for size, _ in self._running])
            for _ in self.rounds[-1]:
                self.end_batch()
                self._free.release()
            self._turn()

    def end_batch(self) -> None:
        """Let the oldest batch end; its process stays busy."""
        size, end = self._running.pop(0)
        done = min(size, self.reached)
        end([(0, "done", 0.0)] * done + [Verdict.UNREACHED] * (size - done))

    @property
    def waiting(self) -> Sequence[Request]:
        return self._consumer._waiting

    def apply_async(
        self,
        target: Any,
        args: Any,
        *,
        accept_callback: Callable[[int, float], None],
        callback: Callable[[Sequence[Any]], None],
        **_: Any,
    ) -> None:
        accept_callback(7, monotonic())
        self._running.append((len(args[1]), callback))

    def _execute_alone(self, request: Any) -> None:
        self._running.append((1, lambda _: self.ended.append("done")))

    def _turn(self) -> None:
        while self._soon:
            self._soon.pop(0)()


def test_items_that_a_batch_did_not_reach_are_shared_among_the_processes() -> None:
    worker = Worker(reached=5)
    worker.execute(100)
    assert len(worker.ended) == 100
    assert worker.rounds[:2] == [[100], [5] * PROCESSES]
    assert len(worker.rounds) <= 8  # one process would need 20


def test_items_that_a_batch_did_not_reach_count_once() -> None:
    state.reset_state()
    worker = Worker(reached=5)
    worker.execute(12)
    assert worker.rounds == [[12], [5, 2]]
    assert (state.all_total_count, dict(state.total_count)) == ([12], {"items": 12})
    state.reset_state()


def test_items_that_wait_for_another_batch_are_not_active() -> None:
    """A `revoke` of an active item ends the process that accepted it, and a lost connection does not drop it."""
    state.reset_state()
    worker = Worker(reached=5)
    worker.begin(12)
    worker.end_batch()
    waiting = [*worker.waiting]
    assert len(waiting) == 7
    assert state.active_requests.isdisjoint(waiting)
    assert {(one.time_start, one.worker_pid) for one in waiting} == {(None, None)}
    state.reset_state()


def test_events_of_a_batch_that_ends_after_a_reconnection_are_sent_by_the_new_connection() -> None:
    worker = Worker(reached=5)
    before = worker.consumer.event_dispatcher
    worker.begin(3)
    worker.consumer.event_dispatcher = after = Dispatcher()
    worker.end()
    assert (before.types, after.types) == (["task-started"] * 3, ["task-succeeded"] * 3)


def test_items_that_take_longer_than_a_batch_may_use_all_processes() -> None:
    worker = Worker(reached=1)
    worker.execute(20)
    assert len(worker.ended) == 20
    assert len(worker.rounds) <= 8


def test_batches_grow_again_when_items_become_faster() -> None:
    worker = Worker(reached=1)
    worker.execute(20)
    worker.reached = MAX_BATCH_SIZE
    worker.execute(20 * MAX_BATCH_SIZE)
    assert MAX_BATCH_SIZE in worker.rounds[-2]
    assert len(worker.ended) == 20 + 20 * MAX_BATCH_SIZE


@pytest.mark.parametrize(("hard", "soft"), [(5, None), (None, 5)])
def test_items_are_executed_alone_once_their_task_has_a_time_limit(hard: float | None, soft: float | None) -> None:
    alone: list[Request] = []
    task = SimpleNamespace(time_limit=None, soft_time_limit=None)
    consumer = strategy._BatchingConsumer(task, SimpleNamespace(on_task_request=alone.append))
    task.time_limit, task.soft_time_limit = hard, soft  # as `celery control time_limit` does
    request = Request([])
    consumer.on_task_request(request)
    assert alone == [request]


def test_an_item_received_in_the_last_turn_of_a_worker_is_left_to_other_workers() -> None:
    hub, pool = Hub(), TaskPool()
    task = SimpleNamespace(time_limit=None, soft_time_limit=None)
    consumer = strategy._BatchingConsumer(task, SimpleNamespace(hub=hub, pool=pool))
    acknowledged: list[str] = []
    consumer.on_task_request(Request([]))
    hub.call_soon(acknowledged.append, "an earlier item")
    pool.terminate()
    hub.close()
    assert acknowledged == ["an earlier item"]
