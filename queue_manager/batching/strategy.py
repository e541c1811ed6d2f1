"""A worker that finds several items of one kind waiting does them as one group.

Each item stays an ordinary task: its own message, attempt, retry, outcome, acknowledgement and events. Only the work is
done together: the service's `…_many` is called once for all, and each task then ends with the outcome that was found
for it. An item that comes alone takes Celery's own way, and so does every item where the pool does not tell when a
process is free (solo, threads), where a time limit is for one task, or with QM_BATCHING=false.

Guarantee: an item without an outcome, because `…_many` failed as a whole or left it out, is done by itself. When a
process dies, or is replaced because its group took too long, each item of the group is executed alone, at once; so is
an item that an earlier process did not survive (`queue_manager.leases`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any

from celery import Celery
from celery.app import trace
from celery.worker import state
from celery.worker.strategy import default

from models.database import estimated_now
from queue_manager.batching import completion
from queue_manager.batching.completion import Ended
from queue_manager.batching.request import is_process_lost
from queue_manager.batching.task import Verdict
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings

LARGEST = 256  # items of one group: one write of MongoDB, a few ms

Wire = tuple[str, dict[str, Any], Any]
"""A task as it is sent to the pool: its id, its headers, and its decoded body: args, kwargs, what comes after it."""

log = get_logger("QM/groups")


def strategy(task: Any, app: Celery, consumer: Any, **options: Any) -> Any:
    """Return how a worker handles messages of `task`: as Celery does, but with ETAs by the database server's clock and
    through a queue that makes groups."""
    handler = default(task, app, _Grouping(task, consumer) if _makes_groups(task, consumer) else consumer, **options)
    # Celery's own conversion is by this machine's clock, and takes an ETA from before the machine's start for none.
    return partial(handler, to_timestamp=_timer_time)


def _timer_time(eta: datetime, _: Any = None) -> float:
    """Return when an ETA comes, on the monotonic clock of the worker's timer."""
    return monotonic() + (eta - estimated_now()).total_seconds()


def _makes_groups(task: Any, consumer: Any) -> bool:
    worker = consumer.controller
    task.has_worker_limit = bool(worker.time_limit)
    is_told = consumer.on_task_request == getattr(worker, "_process_task_sem", None)
    limits = (task.time_limit, task.soft_time_limit, worker.time_limit, worker.soft_time_limit)
    return settings().qm_batching and is_told and not any(limits) and task.work().many is not None


class _Grouping:
    """The consumer as the strategy sees it: what is to be executed waits here for a free process of the pool.

    It lives as long as one connection to the broker. What waits when that is lost is delivered again.
    """

    def __init__(self, task: Any, consumer: Any) -> None:
        self._consumer, self._task = consumer, task
        self._waiting: deque[Any] = deque()
        self._is_called = False
        self._asked_for = 0  # processes; no more than are needed for what waits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def apply_eta_task(self, request: Any) -> None:
        """Take a task whose time has come; as Celery's own."""
        state.task_reserved(request)
        self.on_task_request(request)
        self._consumer.qos.decrement_eventually()

    def on_task_request(self, request: Any) -> None:
        if any(request.request_dict.get("timelimit") or ()):
            self._consumer.on_task_request(request)
            return
        self._waiting.append(request)
        if not self._is_called:
            self._is_called = True
            # After all messages that came together.
            self._consumer.hub.call_soon(self._acquire)

    def _acquire(self) -> None:
        self._is_called = False
        while self._asked_for * LARGEST < len(self._waiting):
            self._asked_for += 1
            self._consumer.controller._quick_acquire(self._send)

    def _send(self) -> None:
        """Send what waits to the process that has become free."""
        self._asked_for -= 1
        requests = [self._waiting.popleft() for _ in range(min(LARGEST, len(self._waiting)))]
        group = [request for request in requests if not request.revoked()]
        if len(group) > 1:
            self._execute(group)
        elif group:
            self._consumer.controller._process_task(group[0])
        else:
            self._consumer.controller._quick_release()

    def _execute_alone(self, request: Any) -> None:
        # It waits again: left among the running ones, it would never be given up when the connection is lost, and a
        # `revoke` would kill the process that executed it before.
        state.active_requests.discard(request)
        request.time_start = request.worker_pid = None
        self._consumer.on_task_request(request)

    def _execute(self, group: Sequence[Any]) -> None:
        def accepted(pid: int, at: float) -> None:
            for request in group:
                _tell(request.on_accepted, pid, at)

        def ended(outcomes: Sequence[Any]) -> None:
            for request, outcome in zip(group, outcomes, strict=True):
                if outcome is Verdict.ALONE:
                    self._execute_alone(request)
                else:
                    _tell(request.on_success, outcome)

        def failed(error: Any) -> None:
            was_terminated = any(request._already_revoked for request in group)
            was_lost = is_process_lost(error)
            if was_lost:
                log.error(
                    "A process was lost with its group; each item is executed alone",
                    task=self._task.name,
                    tasks=len(group),
                    error=reason(error.exception),
                )
            for request in group:
                if (was_lost or was_terminated) and not (request._already_revoked or request._already_cancelled):
                    self._execute_alone(request)
                else:
                    _tell(request.on_failure, error)

        self._consumer.pool.apply_async(
            run,
            args=(self._task.name, [_wire(request) for request in group]),
            accept_callback=accepted,
            callback=ended,
            error_callback=failed,
            timeout=self._task.item_timeout,
            correlation_id=group[0].id,
        )


def _tell(act: Callable[..., Any], *args: Any) -> None:
    """Tell one request of a group what became of it; whatever that raises, the others are told, too."""
    try:
        act(*args)
    except MemoryError:
        raise
    except Exception as error:
        log.error("A task could not be told its outcome", error=reason(error), exc_info=error)


def _wire(request: Any) -> Wire:
    return request.id, request.request_dict, request._payload


def run(name: str, group: Sequence[Wire]) -> list[Ended | Verdict]:
    """Do a group in a process of the pool; return of each how its task ended.

    One line is logged for the group, and Celery's own for each task that had to be run.
    """
    from tasks.app import app

    task = app.tasks[name]
    run_task = trace.fast_trace_task if app.use_fast_trace_task else trace.trace_task_ret
    is_heard = completion.is_heard(task)
    started = monotonic()
    ended: list[Ended | Verdict] = []
    with task.done_together([(id, args, kwargs) for id, _, (args, kwargs, _) in group]) as outcomes:
        share = (monotonic() - started) / len(group)
        for (id, headers, body), outcome in zip(group, outcomes, strict=True):
            args, kwargs, embed = body
            if outcome is Verdict.ALONE:
                ended.append(outcome)
                continue
            if outcome is not None and not is_heard and completion.is_last(task, headers, embed):
                ended.append(completion.succeed(task, id, args, kwargs, outcome, share))
                continue
            with task.ending_with(outcome):
                ended.append(completion.run(partial(run_task, name, id, headers, body, None, None), share))
    log.info("A group of tasks ended", task=name, tasks=len(group), seconds=round(monotonic() - started, 3))
    return ended
