"""Lets a worker execute items of one kind that wait at the same time as one batch.

Each item stays an ordinary task with its own message, attempt, retry, outcome, acknowledgement and events. Only the
work is shared: the system's `batch_function` is called once for the batch, and each task completes with its outcome.
An item that arrives alone is executed by Celery as usual, and so is every item if the pool does not report free
processes (solo, threads) or if a time limit applies to a single task.

Guarantee: an item without an outcome, because the batch failed or left it out, is executed by its own task. If the
process of a batch dies or is replaced after the timeout, each item of the batch is executed alone, at once. So is an
item whose process was lost before (`queue_manager.leases`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic, time
from typing import Any

from celery import Celery
from celery.worker import state
from celery.worker.strategy import default

from queue_manager.batching import execution
from queue_manager.batching.eta import timer_time
from queue_manager.batching.execution import TaskResult
from queue_manager.batching.request import is_process_lost
from queue_manager.broker.consumer import Consumer
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.items import Verdict

MAX_BATCH_SIZE = 1_000  # items: one write in MongoDB of about 30 ms

log = get_logger("QM/batches")


def strategy(task: Any, app: Celery, consumer: Any, **options: Any) -> Any:
    """Return the message handler for `task`: that of `by_server_clock`, with batches if possible."""
    executing = _BatchingConsumer(task, consumer) if _can_batch(task, consumer) else consumer
    return by_server_clock(task, app, executing, **options)


def by_server_clock(task: Any, app: Celery, consumer: Any, **options: Any) -> Any:
    """Return the message handler for `task`: Celery's, with ETAs by the database server's clock."""
    # Celery converts by this machine's clock, and ignores an ETA from before the machine's start.
    return partial(default(task, app, consumer, **options), to_timestamp=timer_time)


def _can_batch(task: Any, consumer: Any) -> bool:
    worker = consumer.controller
    task.has_worker_limit = bool(worker.time_limit)
    waits_for_processes = consumer.on_task_request == getattr(worker, "_process_task_sem", None)
    limits = (task.time_limit, task.soft_time_limit, worker.time_limit, worker.soft_time_limit)
    return settings().qm_batching and waits_for_processes and not any(limits) and task.work().batch_function is not None


class _BatchingConsumer:
    """The consumer as the strategy sees it: requests wait here for a free process of the pool.

    It lives as long as one broker connection; requests that wait when the connection is lost are redelivered.
    """

    def __init__(self, task: Any, consumer: Any) -> None:
        self._consumer, self._task = consumer, task
        self._waiting: deque[Any] = deque()
        self._is_called = False
        self._asked_for = 0  # processes: no more than the waiting requests need, nor than the pool has
        self._size = MAX_BATCH_SIZE  # of a batch; smaller if a process did not reach all items of one in time
        if isinstance(consumer, Consumer):
            consumer.batched_queues.add(task.queue_name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def apply_eta_task(self, request: Any) -> None:
        """Handle a task whose ETA has come, as Celery does."""
        state.task_reserved(request)
        self.on_task_request(request)
        self._consumer.qos.decrement_eventually()
        self._acquire()  # the hub calls what is ready only after the next poll, which may take a second

    def on_task_request(self, request: Any) -> None:
        of_message = request.request_dict.get("timelimit") or ()
        if any((*of_message, self._task.time_limit, self._task.soft_time_limit)):  # of the task: by remote control
            self._consumer.on_task_request(request)
            return
        self._waiting.append(request)
        if not self._is_called:
            self._is_called = True
            # After all messages of one delivery.
            self._consumer.hub.call_soon(self._acquire_all)

    def _acquire_all(self) -> None:
        self._is_called = False
        if self._consumer.pool.active:  # a worker that ends makes the calls that are left after it ended its pool
            self._acquire()

    def _acquire(self) -> None:
        most = self._consumer.pool.num_processes
        while self._asked_for < most and self._asked_for * self._size < len(self._waiting):
            self._asked_for += 1
            self._consumer.controller._quick_acquire(self._send)

    def _send(self) -> None:
        """Send waiting requests to the process that became free."""
        self._asked_for -= 1
        requests = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
        batch = [request for request in requests if not request.revoked()]
        if len(batch) > 1:
            self._execute(batch)
        elif batch:
            self._adapt_size(1, reached=1)
            self._consumer.controller._process_task(batch[0])
        else:
            self._consumer.controller._quick_release()
        self._acquire()

    def _adapt_size(self, size: int, *, reached: int) -> None:
        """Adapt the size of the next batches to what one process can do in time; other processes do the rest."""
        if reached < size:
            self._size = max(1, reached)
        elif size == self._size:
            self._size = min(2 * size, MAX_BATCH_SIZE)

    def _execute_again(self, request: Any, consumer: Any) -> None:
        # The request waits again. If it stayed active, it would not be dropped when the connection is lost, and a
        # `revoke` would kill the process that executed it before.
        state.active_requests.discard(request)
        if request.time_start is not None:  # it was counted when it was accepted, and will be again
            state.total_count[request.name] -= 1
            state.all_total_count[0] -= 1
        request.time_start = request.worker_pid = None
        consumer.on_task_request(request)

    def _events(self) -> Any:
        """Return the dispatcher of events: that of the current connection. `None` if the task sends no events."""
        return self._consumer.event_dispatcher if self._task.send_events else None

    def _execute(self, batch: Sequence[Any]) -> None:
        def accepted(pid: int, at: float) -> None:
            report_accepted(batch, pid, at, self._events())

        def ended(outcomes: Sequence[TaskResult | Verdict]) -> None:
            self._adapt_size(len(batch), reached=sum(outcome is not Verdict.UNREACHED for outcome in outcomes))
            done: list[tuple[Any, TaskResult]] = []
            for request, outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Verdict):
                    self._execute_again(request, self if outcome is Verdict.UNREACHED else self._consumer)
                elif outcome[0]:  # failed
                    notify(request.on_success, outcome)
                else:
                    done.append((request, outcome))
            report_succeeded(done, self._events())

        def failed(error: Any) -> None:
            again = len(batch) - sum(map(_was_ended, batch))
            if again and not any(request._already_revoked for request in batch):  # which terminates the process
                what = "A process was lost with its batch" if is_process_lost(error) else "A batch has no outcomes"
                log.error(
                    f"{what}; each item is executed alone",
                    task=self._task.name,
                    tasks=again,
                    error=reason(error.exception),
                )
            for request in batch:
                if _was_ended(request):
                    notify(request.on_failure, error)
                else:
                    self._execute_again(request, self._consumer)

        self._consumer.pool.apply_async(
            execution.run,
            args=(self._task.name, [(request.id, request.request_dict, request._payload) for request in batch]),
            accept_callback=accepted,
            callback=ended,
            error_callback=failed,
            timeout=self._task.batch_timeout,
            correlation_id=batch[0].id,
        )


def report_accepted(requests: Sequence[Any], pid: int, at: float, events: Any) -> None:
    """Report that the process `pid` has begun with requests of one task, at `at` by the monotonic clock.

    Like `Request.on_accepted`, in one pass: Celery's methods would take a quarter of the time of a busy worker.
    """
    started_at = time() - (monotonic() - at)
    for request in requests:
        request.worker_pid, request.time_start = pid, started_at
        state.active_requests.add(request)
    state.total_count[requests[0].name] += len(requests)
    state.all_total_count[0] += len(requests)
    _send_events(events, "task-started", [{"uuid": request.id} for request in requests])
    for request in requests:
        if request._terminate_on_ack is not None:  # it was revoked on the way to the process
            notify(request.terminate, *request._terminate_on_ack)


def report_succeeded(done: Sequence[tuple[Any, TaskResult]], events: Any) -> None:
    """Report that requests have succeeded, with the result of each, and acknowledge their messages.

    Like `Request.on_success`, in one pass.
    """
    for request, _ in done:
        # Not added to `successful_requests`, which Celery reads only for tasks that it executes itself.
        state.task_ready(request)
        notify(request.acknowledge)
    fields = [{"uuid": request.id, "result": value, "runtime": runtime} for request, (_, value, runtime) in done]
    _send_events(events, "task-succeeded", fields)


def _send_events(events: Any, type: str, fields: Sequence[dict[str, Any]]) -> None:
    if events is not None and events.enabled:
        notify(events.send_all, type, fields)


def notify(act: Callable[..., Any], *args: Any) -> None:
    """Report to one request; an error of one does not affect the others of the batch."""
    try:
        act(*args)
    except MemoryError:
        raise
    except Exception as error:
        log.error("The outcome of a task could not be reported", error=reason(error), exc_info=error)


def _was_ended(request: Any) -> bool:
    """Return True if the worker itself ended the request."""
    return bool(request._already_revoked or request._already_cancelled)
