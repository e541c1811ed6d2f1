"""Scan tasks: each publishes one message per item that is due, records what it did, and raises if anything failed."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from celery import Task, current_task

from beat_schedule import systems
from models import database, scan_run
from models.database import server_now, within
from queue_manager.batching.publish import UNCERTAIN, is_json, publish
from queue_manager.beat import scan_ticks
from queue_manager.broker.backlog import Backlog
from queue_manager.core.clock import Pace, seconds
from queue_manager.core.errors import ConfigurationError, ErrorText, ScanFailed, is_expected, reason
from queue_manager.core.functions import contained
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.core.wording import many
from queue_manager.items import DueItem
from queue_manager.system import SCANS_QUEUE
from queue_manager.telemetry import counters, error_reports, tracing
from services import history
from services.due_work import DueBatch, DueWork
from tasks.app import app
from tasks.item import ItemTask, current_task_id

MAX_SCAN = seconds(60)  # even if its period is longer, because other scans may wait for its thread
RECORD_TIMEOUT = seconds(1)  # for what a scan records only for people to read

log = get_logger("QM/tasks")
_copies = Pace(history.COPY_INTERVAL)
_warnings = defaultdict[str, Pace](lambda: Pace(scan_run.RUN_LEASE))  # of each scan
_runs: dict[str, float] = {}
"""When the runs of scans in this process began, by the monotonic clock: one at a time of each scan.

A scan that hangs would otherwise occupy one thread of a worker after the other, until no other scan can run.
"""


@dataclass(kw_only=True)
class ScanReport:
    """Counts of one scan: `found` due, `claimed` by their leases, `enqueued` as messages, and others.

    `details` are returned and not recorded.
    """

    found: int = 0
    claimed: int = 0
    enqueued: int = 0
    errors: list[str] = field(default_factory=list)
    other_counts: Counter[str] = field(default_factory=Counter)
    details: dict[str, Any] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        return {
            **self.other_counts,
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
        if not self.request.called_directly and not self._must_run():
            self._end(current_task_id())
            return {"skipped": True}
        started = time.monotonic()
        about = {"celery.task": self.name}
        with self._running(), tracing.processing(self.queue_name, [vars(self.request)], attributes=about):
            try:
                with contained():
                    report = self.run(*args, **kwargs)
                if not isinstance(report, ScanReport):
                    raise ConfigurationError(f"{self.name} returned {report!r:.100}, not the report of `fan_out`")
            except Exception as error:
                report = ScanReport(errors=[report_error(error)])
            tracing.annotate(**report.counts())
        duration_ms = round((time.monotonic() - started) * 1000)
        run = {**report.counts(), "duration_ms": duration_ms}
        scan_log = get_logger(self.initiator)
        counters.scan(self.name, run)
        self._record(run, report)
        if report.enqueued:
            scan_log.info(self.sent, **run)
        for message in report.errors:
            scan_log.error(self.failed, error=message)
        if report.errors:
            first = ": " if len(report.errors) == 1 else "; the first: "
            raise ScanFailed(f"The scan had {many(len(report.errors), 'error')}{first}{report.errors[0]}")
        return {**run, **report.details}

    def _must_run(self) -> bool:
        began = time.monotonic()
        if (first_began := _runs.setdefault(self.name, began)) is not began:
            lasts = began - first_began
            hangs = lasts > scan_run.RUN_LEASE.total_seconds()
            say = log.warning if hangs and _warnings[self.name].allows() else log.debug
            say("A tick was skipped: an earlier run has not ended", scan=self.name, seconds=round(lasts))
            return False
        if not scan_ticks.begin(self.request.get(scan_ticks.TICK_HEADER)):
            log.debug("A tick was skipped: a run began after it was sent", scan=self.name)
            del _runs[self.name]
            return False
        return True

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Record that the scan runs while the block does, so that it is not triggered meanwhile."""
        task_id = current_task_id()
        self._best_effort("marked as running", lambda: scan_run.begin(self.name, task_id, now=server_now()))
        try:
            yield
        finally:
            if not self.request.called_directly:
                _runs.pop(self.name, None)
            self._end(task_id)

    def _end(self, task_id: str) -> None:
        self._best_effort("marked as ended", lambda: scan_run.end(self.name, task_id))

    def _record(self, run: dict[str, int], report: ScanReport) -> None:
        error = next(iter(report.errors), None)
        self._best_effort("recorded", lambda: scan_run.record(self.name, run, error=error, now=server_now()))
        if _copies.allows():  # counts are kept for a day, so if this fails, a later scan copies them
            self._best_effort("copied to the history", lambda: history.copy(systems(), now=server_now()))

    def _best_effort(self, done: str, act: Callable[[], object]) -> None:
        """Record something that only people read: an error must not fail the scan."""
        try:
            with within(RECORD_TIMEOUT):
                act()
        except Exception as error:
            database.leave_if_logged_out(error)
            log.warning(f"The scan could not be {done}", scan=self.name, error=reason(error))


def scan_task(
    *, initiator: str, sent: str, failed: str, name: str | None = None
) -> Callable[[Callable[[], ScanReport]], ScanTask]:
    """Make a scan of a function that returns its `ScanReport`.

    Args:
        initiator: the name of the logger.
        sent: the line that is logged when items were sent.
        failed: the line that is logged for each error.
        name: the registered name of the task; by default the module and the name of the function.
    """
    return app.task(base=ScanTask, initiator=initiator, sent=sent, failed=failed, name=name)


def fan_out(task: ItemTask, *works: DueWork, ends_at: float | None = None) -> ScanReport:
    """Lease what is due and publish one `task` per item, batch by batch; one work that fails does not stop the next.

    A batch that the broker refused is released at once, and the rest goes on. One whose delivery is uncertain keeps its
    leases, and is dispatched again when they end.

    Args:
        ends_at: when the scan must end, by the monotonic clock; by default `scan_end()`.
    """
    report = ScanReport()
    end = scan_end() if ends_at is None else ends_at

    def measure() -> Backlog:
        return Backlog.of_queue(app, task.queue_name, time_left=seconds(end - time.monotonic()))

    for work in works:
        try:
            with contained():
                for batch in work.take_due(measure):
                    report.found += batch.found
                    report.claimed += len(batch.items)
                    report.other_counts.update(batch.other_counts)
                    _send(task, work, batch, report)
        except Exception as error:
            report.errors.append(report_error(error))
    return report


def scan_end() -> float:
    """Return when a scan that begins now must end, by the monotonic clock: before its next tick."""
    name = current_task.name if current_task else ""
    periods = [system.period(settings()) for system in systems() if system.scan_task == name]
    return time.monotonic() + min([0.9 * period for period in periods] + [MAX_SCAN]).total_seconds()


def report_error(error: Exception) -> ErrorText:
    """Return an error as one line; log an unexpected one with its traceback, and report it."""
    database.leave_if_logged_out(error)
    text = ErrorText.of(f"{type(error).__name__}: {reason(error)}", error)
    if not is_expected(error) and not isinstance(error, database.Error):
        log.error("Unexpected error in a scan", error=text, exc_info=error)
        error_reports.report_repeated(error, where=current_task.name if current_task else "scan")
    return text


def _send(task: ItemTask, work: DueWork, batch: DueBatch, report: ScanReport) -> None:
    try:
        _require_same_lease(task, work, batch.items)
        with app.producer_pool.acquire(block=True, timeout=10) as producer:
            publish(task, batch.items, producer)
    except Exception as error:
        sendable = [] if isinstance(error, UNCERTAIN) else [one for one in batch.items if is_json(one.args)]
        if 0 < len(sendable) < len(batch.items):  # the others must not hold them up
            _send(task, work, replace(batch, items=sendable), report)
            batch = replace(batch, items=[one for one in batch.items if not is_json(one.args)])
        report_error(error)
        cause = error.__cause__ or error
        report.errors.append(
            ErrorText.of(f"{many(len(batch.items), 'item')} could not be sent: {reason(cause)}", cause)
        )
        if not isinstance(error, UNCERTAIN):
            work.release(batch.items)
        return
    report.enqueued += len(batch.items)
    work.mark_dispatched(batch)


def _require_same_lease(task: ItemTask, work: DueWork, items: Sequence[DueItem]) -> None:
    """Raise ConfigurationError if workers would renew and end other leases than the scan has taken."""
    for item in items[:1]:
        read = task.read_item(work, item.task_id, item.args, {})
        if read is not None and read.lease != item.lease:
            raise ConfigurationError(
                f"{task.name}{item.args} names the lease {read.lease!r}, and `Due` named {item.lease!r}: give `Due` "
                "no `args`, or override `lease_of`"
            )
