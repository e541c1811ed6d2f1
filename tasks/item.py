"""Item tasks: each acts on one item, is retried by its `RetryPolicy`, and gives the item up after the last attempt."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar
from uuid import uuid4

from celery import current_task
from celery.exceptions import Ignore, Reject, Retry, TaskPredicate
from celery.result import AsyncResult

from models.database import estimated_now, is_outage
from models.item_events import AttemptEvent
from queue_manager.batching.publish import publish_copy
from queue_manager.batching.task import WAIT_IN_PLACE, BatchedTask
from queue_manager.core.clock import seconds
from queue_manager.core.errors import (
    ConfigurationError,
    ContinueLater,
    ErrorText,
    FunctionExited,
    NotYetDue,
    PermanentError,
    reason,
    typed_reason,
)
from queue_manager.core.functions import contained, require_done
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import REDIS_OUTAGES, RedisError
from queue_manager.core.retry import RetryPolicy
from queue_manager.core.settings import settings
from queue_manager.items import DueItem
from queue_manager.leases import MustCoolDown
from queue_manager.telemetry import counters, error_reports, tracing
from services.due_work import DueWork
from tasks.app import app

MIN_OUTAGE_WAIT = seconds(1)  # until an attempt that met an outage is repeated
MAX_REQUEUE_WAIT = seconds(5)  # until a message that could not be sent again is put back
MAX_FREE_REPEATS = 5  # attempts in a row that an outage does not use up, although MongoDB answers after it
REPEATS_HEADER = "qm_repeats"  # how many attempts in a row met an outage
MIN_BATCH_TIMEOUT = 30.0  # seconds: MongoDB may keep a batch waiting for so long

log = get_logger("QM/tasks")
T = TypeVar("T")


class ItemTask(BatchedTask):
    """Executes one item. `retry_policy` decides about retries; an item that starts too early is sent again."""

    abstract = True
    Request = "queue_manager.batching.request:ItemRequest"
    queue_name: str
    retry_policy: RetryPolicy
    is_long: bool
    is_counted: bool
    has_worker_limit = False  # whether this worker was started with `--time-limit`
    max_retries = None  # `retry_policy` decides
    throws = (PermanentError,)  # logged in one line, by `on_failure`, without a traceback

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        item = self.item(self.request.id, args, kwargs)
        try:
            with self.work().attempt(item) if self._batch is None else nullcontext(self._batch.attempts) as attempts:
                result = self._measured_attempt(item)
                attempts.done.add(item.lease)
                return result
        except MustCoolDown as lost:
            log.error(f"Item is not started: {lost}", task=self.name, args=item.args)
            error_reports.report(lost, where=self.name, task_id=item.task_id, item=item.lease)
            self.work().record_attempt(item, "failed", error=reason(lost))  # this process is not the one that was lost
            self._cool_down(item, lost)
            raise Ignore from None

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, *more: Any, **options: Any
    ) -> AsyncResult:
        """Send the task as Celery does. Without options, this takes a fraction of Celery's time."""
        if args and isinstance(args, (list, tuple)) and not (kwargs or task_id or more or options):
            if self.typing:
                self.__header__(*args)
            task_id = str(uuid4())
            with suppress(RedisError):  # Celery then sends it, perhaps a second time; the item takes effect once
                if publish_copy(self, args, task_id):
                    result = self.AsyncResult(task_id)
                    result.ignored = True
                    return result
        return super().apply_async(args, kwargs, task_id, *more, **options)

    def _cool_down(self, item: DueItem, lost: MustCoolDown) -> None:
        try:
            self.work().cool_down_lost(item, lost)
        except Exception as error:
            log.warning("Item could not be released until its lease ends", task_id=item.task_id, error=reason(error))

    @property
    def item_timeout(self) -> float | None:
        """Seconds after which the process of this item is replaced.

        Celery's `time_limit` would be part of every message, and is meant for one task, not for a batch. If it is set,
        it applies instead.
        """
        is_limited = self.has_worker_limit or self.time_limit or self.app.conf.task_time_limit
        return None if self.is_long or is_limited else settings().qm_item_timeout_seconds

    @property
    def batch_timeout(self) -> float | None:
        """Seconds after which the process of a batch is replaced: one lease, so that its items wait no longer."""
        shortest = min(settings().qm_item_timeout_seconds, settings().qm_lease_seconds)
        return None if self.is_long else max(shortest, MIN_BATCH_TIMEOUT)

    def _measured_attempt(self, item: DueItem) -> Any:
        began = time.monotonic()
        is_measured = self.is_long or self.has_batch_outcome  # by its system, or by the batch
        result = self._attempt(item)
        # Set in any case, because the request contains the headers of the message, which may have one of this name.
        self.request.durations = (
            {} if is_measured else self.durations(self.work(), [(item, self.request, result)], began=began)
        )
        return result

    def _attempt(self, item: DueItem) -> Any:
        try:
            with nullcontext() if self._batch else self._span(item), contained():  # a batch has a span
                return self._run_when_due(item)
        except (PermanentError, Ignore, Reject):
            raise
        except Exception as error:
            next_attempt = self.request.retries + 2
            if is_outage(error) and self._is_uncounted():
                log.warning("MongoDB is unavailable; the attempt is repeated", task=self.name, error=reason(error))
                wait = max(self.retry_policy.wait_before(next_attempt), MIN_OUTAGE_WAIT)
                self._send_again(item, wait, repeats=self._repeats + 1)
            if not self.retry_policy.allows(next_attempt):
                if isinstance(error, MemoryError):  # Celery would end the whole worker
                    raise PermanentError("not enough memory") from error
                raise
            wait = self.retry_policy.wait_before(next_attempt)
            self._record(item, "retried", error)
            raise self._retry(item, error, wait) from error

    @property
    def _repeats(self) -> int:
        repeats = self.request.get(REPEATS_HEADER)
        return repeats if isinstance(repeats, int) else 0

    def _is_uncounted(self) -> bool:
        """Return True if an attempt that met an outage is not counted, and is repeated."""
        return self._repeats < MAX_FREE_REPEATS or self.is_database_away()

    def _span(self, item: DueItem) -> AbstractContextManager[object]:
        about = {"celery.task": self.name, "messaging.message.id": item.task_id}
        headers = vars(self.request)
        return tracing.processing(self.queue_name, [headers], attributes=about, not_errors=(Ignore, Reject))

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self.count_successes(1, **self.request.durations)

    def count_successes(self, count: int, **durations: int) -> None:
        self._count({"done": count, **durations})

    def _count(self, counts: dict[str, int]) -> None:
        if self.is_counted:
            counters.items(self.queue_name, counts)

    def on_retry(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self._count({"retried": 1})

    def on_failure(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Record the final failure: no attempt is left, or a retry cannot help."""
        log.error(f"The final attempt of an item failed: {reason(exc)}", task=self.name, task_id=task_id)
        if not isinstance(exc, REDIS_OUTAGES) and not is_outage(exc):  # health reports an outage once for all items
            error_reports.report(exc, where=self.name, task_id=task_id, attempts=self.request.retries + 1)
        self._count({"failed": 1})
        try:
            item = self.item(task_id, args, kwargs)
            self._record(item, "failed", exc)
            give_up = partial(self._give_up, item, error=typed_reason(exc))
            if is_outage(exc):  # it is final only because MongoDB answered after it
                give_up()
            else:
                self.use_database(give_up)
        except PermanentError:
            pass  # the arguments are not those of an item, so there is nothing to give up
        except Exception as error:
            log.error("Failure could not be recorded; the item is retried when its lease ends", error=reason(error))

    def _give_up(self, item: DueItem, *, error: str) -> None:
        try:
            self.work().give_up(item, error=error)
        except PermanentError:  # a malformed argument names no item, but a lease was taken for it
            self.work().release([item])

    def _record(self, item: DueItem, event: AttemptEvent, error: Exception) -> None:
        """Record an attempt that did not succeed."""
        self.work().record_attempt(item, event, error=typed_reason(error), attempt=self.request.retries + 1)

    def _run_when_due(self, item: DueItem) -> Any:
        while True:
            try:
                return self._outcome(item)
            except TaskPredicate as error:  # of a task that the function called; Celery would record no failure
                raise FunctionExited(f"the function raised Celery's {type(error).__name__}") from error
            except NotYetDue as early:
                # This machine's clock is ahead of the server's, which decides.
                if early.remaining > WAIT_IN_PLACE:
                    self._send_again(item, early.remaining)
                time.sleep(early.remaining.total_seconds())
            except ContinueLater:
                self._send_again(item, timedelta(0))

    def _outcome(self, item: DueItem) -> Any:
        outcome = self.batch_outcome()
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is None:
            began = time.monotonic()
            outcome = require_done(self.use_database(lambda: self.run(*item.args)), self.name)
            self.work().record_executed([item], [outcome or {}], took=seconds(time.monotonic() - began))
        return outcome

    def _send_again(self, item: DueItem, wait: timedelta, *, repeats: int = 0) -> NoReturn:
        """End this task, and send it again as the same attempt, to be executed after `wait`."""
        eta = estimated_now() + wait if wait else None
        same = self.signature_from_request(self.request, eta=eta, retries=self.request.retries)
        headers = {**(same.options.get("headers") or {}), REPEATS_HEADER: repeats}
        self._publish_next(item, wait, lambda: same.apply_async(headers=headers))
        raise Ignore

    def _retry(self, item: DueItem, error: Exception, wait: timedelta) -> Retry:
        """Publish the next attempt; return the exception that ends this one."""
        eta = estimated_now() + wait  # not `countdown`, which Celery adds to this machine's time
        headers = {**(self.request.headers or {}), REPEATS_HEADER: self._repeats if is_outage(error) else 0}
        publish = partial(self.retry, exc=error, eta=eta, headers=headers, throw=False)
        retry: Retry = self._publish_next(item, wait, publish)
        text = f"Retry in {wait.total_seconds()}s: {type(error).__name__}: {reason(error)}"
        retry.message = ErrorText.of(text, error)  # which Celery logs
        return retry

    def _publish_next(self, item: DueItem, wait: timedelta, publish: Callable[[], T]) -> T:
        """Publish the message that replaces this one. Within a batch, stop publishing after the first error.

        Waits a little after an error, because this message is redelivered at once: a Redis whose memory is full refuses
        the next attempt, and would redeliver this one several times a second.

        Raises:
            Reject: it could not be published, so this message is requeued.
        """
        if self._batch is not None and self._batch.broker_error is not None:
            raise Reject(self._batch.broker_error, requeue=True)
        self._postpone(item, wait)
        try:
            return publish()
        except Exception as error:
            # Celery rejects a message whose retry it cannot publish.
            text = reason(error.reason if isinstance(error, Reject) else error)
            # So that it is not logged for each message, even if memory is full.
            text.server = text.server or "the broker"
            if self._batch is not None:
                self._batch.broker_error = text
            log.warning(
                "The next attempt could not be published; this message is delivered again",
                task=self.name,
                task_id=self.request.id,
                error=text,
            )
            time.sleep(min(wait, MAX_REQUEUE_WAIT).total_seconds())
            raise Reject(text, requeue=True) from error

    def _postpone(self, item: DueItem, wait: timedelta) -> None:
        try:
            self.work().postpone([item], wait=wait)
        except Exception as error:
            # If the lease ends meanwhile, the only effect is a duplicate message.
            log.warning("Lease could not be renewed for the wait", task_id=item.task_id, error=reason(error))


def item_task(
    *,
    queue: str,
    work: Callable[[], DueWork],
    retry: RetryPolicy,
    is_long: bool = False,
    is_counted: bool = True,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], ItemTask]:
    """Make an item task of a function.

    Args:
        queue: the Celery queue of the system.
        work: returns the work of the system.
        retry: the number of attempts, and the waits between them.
        is_long: it may run for hours: it has no time limit, and its system keeps its leases and counts its losses.
        is_counted: whether its outcomes count as those of items of the system.

    Raises:
        ConfigurationError: `work` is not a function, or `retry` not a RetryPolicy.
    """
    if not callable(work):
        raise ConfigurationError(f"item_task: work={work!r:.100} must be the function that returns it, without a call")
    if not isinstance(retry, RetryPolicy):
        raise ConfigurationError(f"item_task: retry={retry!r:.100} must be a RetryPolicy")
    return app.task(
        base=ItemTask,
        queue_name=queue,
        work=staticmethod(work),
        retry_policy=retry,
        is_long=is_long,
        is_counted=is_counted,
        name=name,
    )


def current_task_id() -> str:
    """Return the id of the running task; a direct call gets a new one."""
    return (current_task and current_task.request.id) or f"direct-{uuid4().hex}"
