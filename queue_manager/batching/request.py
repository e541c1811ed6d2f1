"""The request of an item in the main process of a worker.

When its pool process dies, the item is released at once. While no process executes it, it can be put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.worker import state
from celery.worker.request import Request

from queue_manager.core.log import get_logger

log = get_logger("QM/tasks")

lost_requests: deque[tuple[Request, str]] = deque()
"""Requests whose process died, and why.

The worker's heartbeat releases their items, since MongoDB may keep a caller waiting.
"""


def is_process_lost(error: Any) -> bool:
    """Return True if `error`, an `ExceptionInfo`, says that the process died or was replaced for taking too long."""
    # SystemExit: the item itself ended its process.
    return isinstance(_exception_of(error), WorkerLostError | TimeLimitExceeded | SystemExit)


def _exception_of(error: Any) -> Any:
    exception = error.exception
    return exception.exc if isinstance(exception, ExceptionWithTraceback) else exception


def _describe_loss(error: Any) -> str:
    exception = _exception_of(error)
    if not isinstance(exception, TimeLimitExceeded):
        return "its process died"
    limit = exception.args[0]  # `None` if it is that of the whole worker
    return f"it took {'too long' if limit is None else f'longer than {limit:g} s'}, so its process was ended"


class ItemRequest(Request):
    """Celery's request; if its process dies, the item's lease is released after Celery has recorded the failure."""

    _time_limits: Sequence[float | None] = (None, None)

    @property
    def time_limits(self) -> Sequence[float | None]:
        """The hard and the soft limit: those of the message, or those of the task, or the timeout of every item.

        Those of the task are read each time, because `celery control time_limit` changes them; Celery reads them once.
        """
        if any(self._time_limits):
            return self._time_limits
        return self.task.time_limit or self.task.item_timeout, self.task.soft_time_limit

    @time_limits.setter
    def time_limits(self, of_message: Sequence[float | None]) -> None:
        self._time_limits = of_message

    def put_back(self, consumer: Any) -> None:
        """Requeue a message that no process executes. When a process is free, this request is passed over."""
        self._already_revoked = True
        if self in state.scheduled_requests:
            consumer.timer.cancel(self._eta_timer_entry)
            consumer.qos.decrement_eventually()
        self.reject(requeue=True)
        state.task_ready(self)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        is_lost = is_process_lost(exc_info) and not (self._already_revoked or self._already_cancelled)
        super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        if is_lost:
            lost_requests.append((self, _describe_loss(exc_info)))

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Log a hard timeout, and record the failure unless the prefork pool has called `on_failure` before."""
        if soft:
            super().on_timeout(soft, timeout)
            return
        log.error("Item was stopped: it took too long", task=self.name, task_id=self.id, seconds=timeout)
        if self in state.reserved_requests:  # other pools call only this method
            try:
                raise TimeLimitExceeded(timeout)
            except TimeLimitExceeded:
                self.on_failure(ExceptionInfo())
