"""The two kinds of task, and how a scan's items are sent.

A *scan* finds what is due, sends one message an item, records what it did, and raises at the end if anything
failed. An *item* acts on one thing; it is tried again by its `RetryPolicy` and handed back to its system when the
last attempt failed. Neither kind knows MongoDB or Redis.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from inspect import Parameter, Signature, signature
from typing import Any
from uuid import uuid4

from celery import Task, current_task
from celery.exceptions import Ignore, Reject, Retry
from kombu import Queue
from kombu.exceptions import BatchPublishError, OperationalError

from beat_schedule import systems
from models import scan_mark, scan_run
from models.database import OUTAGES, estimated_now, server_now, within
from queue_manager.batching.publish import publish
from queue_manager.batching.task import WAIT_IN_PLACE, BatchedTask
from queue_manager.beat import scan_ticks
from queue_manager.broker.keys import FOREIGN_DEFAULT_QUEUE
from queue_manager.core.clock import seconds
from queue_manager.core.errors import (
    AppError,
    ContinueLater,
    NotYetDue,
    PermanentError,
    ScanFailed,
    reason,
    typed_reason,
)
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import REDIS_OUTAGES
from queue_manager.core.retry import RetryPolicy
from queue_manager.core.settings import settings
from queue_manager.leases import MustPause
from queue_manager.system import SCANS_QUEUE
from queue_manager.telemetry import counters
from services.due_work import DueBatch, DueItem, DueWork
from tasks.app import app
from tasks.backlog import QueueBacklog

EXPECTED = (AppError, OperationalError, BatchPublishError, *OUTAGES, *REDIS_OUTAGES)
"""Errors that say enough in one line: those raised on purpose, and a server that is away."""
UNCERTAIN = (OperationalError, BatchPublishError, *REDIS_OUTAGES)
"""After these the broker may have the messages all the same."""
MAX_SCAN = seconds(60)  # however long its period is: another scan waits for its process
FOR_PEOPLE = seconds(1)  # a scan waits no longer for what it only tells people, should MongoDB be away

log = get_logger("QM/tasks")


def current_token() -> str:
    """Return the id of the running task: the token of the claim it holds. A direct call gets one of its own."""
    return (current_task and current_task.request.id) or f"direct-{uuid4().hex}"


# Scans


@dataclass(kw_only=True)
class ScanReport:
    """What a scan did: `found` looked due, `claimed` are ours, `enqueued` were sent, `noted` was seen besides.

    `details` are returned and not recorded.
    """

    found: int = 0
    claimed: int = 0
    enqueued: int = 0
    errors: list[str] = field(default_factory=list)
    noted: Counter[str] = field(default_factory=Counter)
    details: dict[str, Any] = field(default_factory=dict)

    def add(self, other: ScanReport) -> None:
        """Add what another part of the scan did."""
        self.found += other.found
        self.claimed += other.claimed
        self.enqueued += other.enqueued
        self.errors += other.errors
        self.noted.update(other.noted)

    def figures(self) -> dict[str, int]:
        return {
            **self.noted,
            "found": self.found,
            "claimed": self.claimed,
            "enqueued": self.enqueued,
            "errors": len(self.errors),
        }


class ScanTask(Task):
    """Runs a scan once. It is neither acknowledged late nor retried: the next period is the retry."""

    abstract = True
    queue_name = SCANS_QUEUE
    acks_late = False
    max_retries = 0
    throws = (ScanFailed,)  # each of its errors is logged already
    initiator: str
    sent: str
    failed: str

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if not self.request.called_directly and not scan_ticks.begin(self.request.get(scan_ticks.TICK_HEADER)):
            log.debug("A tick was skipped: a run began after it was sent", scan=self.name)
            return {"skipped": True}
        started = time.monotonic()
        with self._marked():
            try:
                report = self.run(*args, **kwargs)
            except Exception as error:
                report = ScanReport(errors=[described(error)])
        duration_ms = round((time.monotonic() - started) * 1000)
        run = {**report.figures(), "duration_ms": duration_ms}
        scan_log = get_logger(self.initiator)
        self._record(run, report)
        counters.scan(self.name, run)
        if report.enqueued:
            scan_log.info(self.sent, **run)
        for message in report.errors:
            scan_log.error(self.failed, error=message)
        if report.errors:
            raise ScanFailed(f"{len(report.errors)} of the scan's steps failed; the first: {report.errors[0]}")
        return {**run, **report.details}

    @contextmanager
    def _marked(self) -> Iterator[None]:
        """Show that the scan runs, so that nobody starts it by hand meanwhile."""
        token = current_token()
        self._try_to_mark(lambda: scan_mark.begin(self.name, token, now=server_now()))
        try:
            yield
        finally:
            self._try_to_mark(lambda: scan_mark.end(self.name, token))

    def _try_to_mark(self, mark: Callable[[], None]) -> None:
        try:
            with within(FOR_PEOPLE):
                mark()
        except Exception as error:
            # The mark is for people; a scan that MongoDB fails says so itself.
            log.warning("The scan could not be marked as running", scan=self.name, error=reason(error))

    def _record(self, run: dict[str, int], report: ScanReport) -> None:
        try:
            with within(FOR_PEOPLE):
                scan_run.record(self.name, run, error=next(iter(report.errors), None), now=server_now())
        except Exception as error:
            # The record only informs: an error while writing it must not fail the scan.
            log.warning("The run could not be recorded", scan=self.name, error=reason(error))


def scan_task(
    *, initiator: str, sent: str, failed: str, name: str | None = None
) -> Callable[[Callable[[], ScanReport]], ScanTask]:
    """Make a scan of a function that returns its `ScanReport`.

    Args:
        initiator: who the log lines are from.
        sent: the line logged when items were sent.
        failed: the line logged for each error.
        name: the registered name; by default the module and the name of the function.
    """
    return app.task(base=ScanTask, initiator=initiator, sent=sent, failed=failed, name=name)


def fan_out(task: ItemTask, *works: DueWork) -> ScanReport:
    """Claim what is due and send one `task` an item, batch by batch; one work that fails does not stop the next.

    A batch that the broker refused is released at once, and the rest goes on. One whose delivery is uncertain keeps its
    leases, and is dispatched again when they end.
    """
    report = ScanReport()
    for work in works:
        try:
            for batch in work.take_due(QueueBacklog(app, task.queue_name, time_left=_time_of_scan())):
                report.found += batch.found
                report.claimed += len(batch.items)
                report.noted.update(batch.noted)
                _send(task, work, batch, report)
        except Exception as error:
            report.errors.append(described(error))
    return report


def _time_of_scan() -> timedelta:
    """Return how long the running scan may take: it ends before its next tick."""
    name = current_task.name if current_task else ""
    periods = [system.period(settings()) for system in systems() if system.scan_task == name]
    return min([0.9 * period for period in periods] + [MAX_SCAN])


def described(error: Exception) -> str:
    """Return an error as a report says it. The stack of one that no outage explains is logged here, once."""
    said = f"{type(error).__name__}: {reason(error)}"
    if not isinstance(error, EXPECTED):
        log.error("Unexpected error in a scan", error=said, exc_info=error)
    return said


def _send(task: ItemTask, work: DueWork, batch: DueBatch, report: ScanReport) -> None:
    try:
        with app.producer_pool.acquire(block=True, timeout=10) as producer:
            publish(task, batch.items, producer)
    except Exception as error:
        described(error)
        report.errors.append(f"{len(batch.items)} items could not be sent: {error.__cause__ or error}")
        if not isinstance(error, UNCERTAIN):
            work.release(batch.items)
        return
    report.enqueued += len(batch.items)
    work.sent(batch)


# Items


class ItemTask(BatchedTask):
    """Acts on one item: retried by `retry_policy`, given up by `on_failure`, early when its time has not come."""

    abstract = True
    Request = "queue_manager.batching.request:ItemRequest"
    queue_name: str
    retry_policy: RetryPolicy
    is_long: bool
    has_worker_limit = False  # `--time-limit` of this worker
    max_retries = None  # `retry_policy` decides
    throws = (PermanentError,)  # logged in one line, by `on_failure`, without a traceback

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        item = self.item(self.request.id, args, kwargs)
        if self._batch is not None:
            return self._batch.record(item, self._attempt(item))
        try:
            with self.work().attempt(item) as attempts:
                result = self._attempt(item)
                attempts.done.add(item.lease)
                return result
        except MustPause as lost:
            log.error(f"Item is not started: {lost}", task=self.name, args=item.args)
            self._pause(item, lost)
            raise Ignore from None

    def _pause(self, item: DueItem, lost: MustPause) -> None:
        try:
            self.work().pause_lost(item, lost)
        except Exception as error:
            log.warning("Item could not be released; its lease ends by itself", task_id=item.token, error=reason(error))

    @property
    def item_timeout(self) -> float | None:
        """Seconds after which the process of this item, or of its group, is replaced.

        Not Celery's `time_limit`, which every message would carry, and which is for one task. Where that is set, it
        holds instead.
        """
        is_limited = self.has_worker_limit or self.time_limit or self.app.conf.task_time_limit
        return None if self.is_long or is_limited else settings().qm_item_timeout_seconds

    def _attempt(self, item: DueItem) -> Any:
        try:
            return self._run_when_due(item)
        except (PermanentError, Ignore, Reject):
            raise
        except Exception as error:
            attempt = self.request.retries + 1
            if not self.retry_policy.allows(attempt + 1):
                if isinstance(error, MemoryError):  # for which Celery ends the whole worker
                    raise PermanentError("not enough memory") from error
                raise
            wait = self.retry_policy.wait_before(attempt + 1)
            self._postpone(item, wait)
            raise self._retry(error, wait) from error

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        counters.items(self.queue_name, {"done": 1})

    def on_retry(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        counters.items(self.queue_name, {"retried": 1})

    def on_failure(self, exc: Exception, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """The last attempt failed, or it can never succeed: the item's system is told."""
        log.error(f"Item failed permanently: {reason(exc)}", task=self.name, task_id=task_id)
        counters.items(self.queue_name, {"failed": 1})
        try:
            item = self.item(task_id, args, kwargs)
            error = reason(exc) if isinstance(exc, EXPECTED) else typed_reason(exc)
            self.ask(lambda: self.work().give_up(item, error=error))
        except PermanentError:
            pass  # the arguments name no item, so there is nothing to give up
        except Exception as error:
            log.error("Failure could not be recorded; the lease will bring the item back", error=reason(error))

    @cached_property
    def _signature(self) -> Signature:
        return signature(self.run)

    @cached_property
    def _arity(self) -> int | None:
        """How many arguments are all of them, given one by one; `None`: that does not tell."""
        kinds = [one.kind for one in self._signature.parameters.values()]
        return len(kinds) if set(kinds) <= {Parameter.POSITIONAL_OR_KEYWORD} else None

    def item(self, token: str, args: Any, kwargs: Any) -> DueItem:
        """Return the item that the arguments name, with every default filled in. Raises PermanentError."""
        given = self._bound(args, kwargs)
        return DueItem(token=token, args=given, lease=self.work().lease_of(given))

    def _bound(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        if isinstance(args, list | tuple) and len(args) == self._arity and kwargs == {}:
            return tuple(args)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PermanentError(f"{self.name}{self._signature} was called with others: {error}") from None
        bound.apply_defaults()
        return bound.args

    def _run_when_due(self, item: DueItem) -> Any:
        while True:
            try:
                return self._outcome(item)
            except NotYetDue as early:
                # This machine's clock runs ahead of the server's, by which everything is judged.
                if early.remaining > WAIT_IN_PLACE:
                    self._send_again(item, early.remaining)
                time.sleep(early.remaining.total_seconds())
            except ContinueLater:
                self._send_again(item, timedelta(0))

    def _outcome(self, item: DueItem) -> Any:
        found = self.found()
        return self.ask(lambda: self.run(*item.args)) if found is None else found

    def _send_again(self, item: DueItem, wait: timedelta) -> None:
        """Come back after `wait` as the same attempt of the same task."""
        self._postpone(item, wait)
        eta = estimated_now() + wait if wait else None
        same = self.signature_from_request(self.request, eta=eta, retries=self.request.retries)
        try:
            same.apply_async()
        except Exception as error:
            raise self._requeued(error) from error
        raise Ignore

    def _retry(self, error: Exception, wait: timedelta) -> Exception:
        """Publish the next attempt; return the exception that ends this one."""
        try:
            # Not `countdown`, which Celery adds to this machine's time.
            retry: Retry = self.retry(exc=error, eta=estimated_now() + wait, throw=False)
            retry.when = wait.total_seconds()  # logged as "Retry in 2s"
            return retry
        except Reject as rejected:  # Celery gives up a message whose retry it cannot publish
            return self._requeued(rejected.reason)

    def _requeued(self, error: Any) -> Reject:
        """Return what puts this message back: while no other carries the item on, it must not be lost."""
        log.warning(
            "The next attempt could not be published; this message is delivered again",
            task=self.name,
            task_id=self.request.id,
            error=reason(error),
        )
        return Reject(reason(error), requeue=True)

    def _postpone(self, item: DueItem, wait: timedelta) -> None:
        try:
            self.ask(lambda: self.work().postpone(item, wait=wait))
        except Exception as error:
            # A lease that runs out meanwhile costs a duplicate message, and nothing else.
            log.warning("Lease could not be renewed for the wait", task_id=item.token, error=reason(error))


def send_by_name(name: str, *args: Any) -> None:
    """Send a task that another application has, to the queue where its workers take tasks by default."""
    # As an object: a queue by its name would be consumed by this worker when it connects again.
    app.send_task(name, list(args), queue=Queue(FOREIGN_DEFAULT_QUEUE), retry=False)


def item_task(
    *, queue: str, work: Callable[[], DueWork], retry: RetryPolicy, is_long: bool = False, name: str | None = None
) -> Callable[[Callable[..., Any]], ItemTask]:
    """Make an item task of a function.

    Args:
        queue: the Celery queue of its own.
        work: opens the system that the item belongs to.
        retry: how often it is tried, and the waits between.
        is_long: it may run for hours under leases of its own: no time limit, and losses are counted by its system.
    """
    return app.task(
        base=ItemTask, queue_name=queue, work=staticmethod(work), retry_policy=retry, is_long=is_long, name=name
    )
