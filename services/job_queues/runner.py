"""Runner of one queue: executes its jobs one after another, each under a lease that a heartbeat renews.

Guarantee: at most one job of a name runs at a time. A result is recorded only while this worker holds the claim of the
job; a worker that lost the claim changes nothing.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Event, Thread

from models import job, job_attempt, job_queue
from models.database import OUTAGES, Document, Error
from models.job import JobState, NameBusy
from models.job_attempt import JobOutcome
from queue_manager.core.clock import seconds
from queue_manager.core.errors import PermanentError, reason
from queue_manager.core.log import get_logger
from queue_manager.core.retry import RetryPolicy
from services.job_queues.registry import Registry, accepts_run

RETRY_POLICY = RetryPolicy(max_attempts=None, base=seconds(5), jitter=True)
READ_BATCH_SIZE = 32  # jobs
READ_TTL = 0.2  # seconds until the order of jobs, a pause and the leader are read again
WRITE_RETRY_DELAY = 0.5  # seconds between two attempts to write an outcome
PROGRESS_INTERVAL = 0.5  # seconds between two writes of one job's progress
MAX_ERROR_LENGTH = 2_000  # characters
RENEWALS_PER_LEASE = 3  # so that two renewals may fail

log = get_logger("QM/jobs")


@dataclass(kw_only=True)
class RunReport:
    """Result of one run: the number of attempts by outcome, and the reason of an early stop."""

    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    """Results that were refused because the claim was lost."""
    stopped: str | None = None


@dataclass(kw_only=True)
class Runner:
    """Runs the jobs of one name.

    Args:
        clock: returns the time of the database server.
        lease: time until the claim of a job expires without renewal.
        budget: maximum duration of a run, so that other queues get their turn.
        token: identifies this run in the claims of its jobs.
        epoch: of the dispatching leader; `None` if an operator started the run.
    """

    name: str
    registry: Registry
    clock: Callable[[], datetime]
    lease: timedelta
    budget: timedelta
    token: str
    epoch: int | None
    report: RunReport = field(default_factory=RunReport)
    _page: deque[Document] = field(default_factory=deque)
    _read_at: float = -READ_TTL

    def run(self) -> RunReport:
        """Run the due jobs one after another until none is due or the budget is used."""
        end = time.monotonic() + self.budget.total_seconds()
        with _Heartbeat(self) as heartbeat:
            ended: tuple[Document, JobOutcome] | None = None
            while True:
                next_job = self._next_job_after(ended) if time.monotonic() < end else None
                if ended is None and next_job is None:
                    return self.report
                running_job = self._finish_and_start(ended, next_job)
                ended = None
                if running_job is not None:
                    ended = (running_job, self._execute(running_job, heartbeat))

    def _next_job_after(self, ended: tuple[Document, JobOutcome] | None) -> Document | None:
        try:
            return self._next_job()
        except Error:
            if ended is None:
                raise
            return None  # the outcome of the last job must be written first, despite the outage

    def _next_job(self) -> Document | None:
        """Return the next job. The order of jobs is at most `READ_TTL` old."""
        if self.report.stopped:
            return None
        if time.monotonic() - self._read_at > READ_TTL or not self._page:
            self._page.clear()
            self.report.stopped = self._reason_to_stop()
            if self.report.stopped is None:
                self._page.extend(job.next_jobs(self.name, now=self.clock(), limit=READ_BATCH_SIZE))
            self._read_at = time.monotonic()
        return self._page.popleft() if self._page else None

    def _reason_to_stop(self) -> str | None:
        if self.epoch is not None and job_queue.leader_epoch() != self.epoch:
            return "another leader has taken over"
        return "paused" if job_queue.is_paused(self.name) else None

    def _finish_and_start(
        self, ended: tuple[Document, JobOutcome] | None, next_job: Document | None
    ) -> Document | None:
        """Write the outcome of a job and start the next in one round trip; return the started job."""
        if ended is None:
            return self._start(next_job) if next_job is not None else None
        done, is_started = self._write_with_retry(*ended, next_job)
        self._count(ended[1], done)
        return next_job if is_started else None

    def _start(self, next_job: Document) -> Document | None:
        now = self.clock()
        try:
            is_started = job_attempt.start(next_job, token=self.token, now=now, until=now + self.lease)
        except NameBusy:
            self._page.clear()
            self.report.stopped = "another run executes a job of this name"
            return None
        return next_job if is_started else None

    def _write_with_retry(self, done: Document, outcome: JobOutcome, next_job: Document | None) -> tuple[bool, bool]:
        """Write the outcome; retry during an outage of the database for the duration of the lease."""
        end = time.monotonic() + self.lease.total_seconds()
        try:
            return self._write(done, outcome, next_job)
        except OUTAGES as error:
            log.warning(
                "The outcome of a job could not be written and will be retried",
                job=str(done["_id"]),
                error=reason(error),
            )
        while True:
            time.sleep(WRITE_RETRY_DELAY)
            try:
                is_written, _ = self._write(done, outcome, None)
                return is_written, next_job is not None and job_attempt.has_claim(next_job, self.token)
            except OUTAGES:
                if time.monotonic() > end:
                    raise

    def _write(self, done: Document, outcome: JobOutcome, next_job: Document | None) -> tuple[bool, bool]:
        now = self.clock()
        if next_job is None:
            return job_attempt.finish(done, outcome, token=self.token, now=now), False
        until = now + self.lease
        return job_attempt.finish_and_start(done, outcome, next_job, token=self.token, now=now, until=until)

    def _execute(self, running_job: Document, heartbeat: _Heartbeat) -> JobOutcome:
        began = time.monotonic()
        run = Run(running_job, self.token)
        try:
            with heartbeat.renewing(running_job):
                work = self.registry.function_for(self.name)
                work(*running_job["arguments"], **({"run": run} if accepts_run(work) else {}))
        except (Exception, SystemExit, CancelledError) as error:  # errors of a job that must not end the worker
            return self._failure(running_job, error, _ms_since(began))
        return JobOutcome(state=JobState.SUCCESS, took_ms=_ms_since(began))

    def _failure(self, running_job: Document, error: BaseException, took_ms: int) -> JobOutcome:
        attempt = running_job["attempts"] + 1
        message = f"{type(error).__name__}: {_text(error)}"
        log.warning(f"Job failed: {message}", job=str(running_job["_id"]), name=self.name, attempt=attempt)
        backoff = None if isinstance(error, PermanentError) else RETRY_POLICY.wait_before(attempt + 1)
        return JobOutcome(state=JobState.FAILURE, backoff=backoff, error=message, took_ms=took_ms)

    def _count(self, outcome: JobOutcome, is_written: bool) -> None:
        if not is_written:
            log.warning("A result was refused, because the claim of the job was lost", name=self.name)
            self.report.lost += 1
        elif outcome.state is JobState.SUCCESS:
            self.report.succeeded += 1
        else:
            self.report.failed += 1


class Run:
    """Context of a running job: its `id`, its `attempt` (counted from 1), and `progress`."""

    def __init__(self, document: Document, token: str) -> None:
        self.id, self.attempt = str(document["_id"]), int(document["attempts"]) + 1
        self._document, self._token = document, token
        self._written_at = -PROGRESS_INTERVAL

    def progress(self, percent: float, note: str = "") -> None:
        """Report progress from 0 to 100 percent; written at most twice a second. Never raises."""
        is_last = percent >= 100
        if time.monotonic() - self._written_at < PROGRESS_INTERVAL and not is_last:
            return
        self._written_at = time.monotonic()
        progress = {"percent": min(max(float(percent), 0.0), 100.0), "note": _text(note)}
        try:
            job_attempt.set_progress(self._document["_id"], progress, token=self._token)
        except Error as error:
            log.warning("Progress could not be written", job=self.id, error=reason(error))


class _Heartbeat:
    """Renews the lease of the executing job; one thread per run."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._renewed_job: Document | None = None
        self._is_over = Event()
        self._thread = Thread(target=self._run, name="job-heartbeat", daemon=True)

    def __enter__(self) -> _Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @contextmanager
    def renewing(self, document: Document) -> Iterator[None]:
        self._renewed_job = document
        try:
            yield
        finally:
            self._renewed_job = None

    def _run(self) -> None:
        while not self._is_over.wait(self._runner.lease.total_seconds() / RENEWALS_PER_LEASE):
            if (running_job := self._renewed_job) is not None:
                self._renew(running_job)

    def _renew(self, running_job: Document) -> None:
        try:
            until = self._runner.clock() + self._runner.lease
            is_held = job_attempt.renew(running_job["_id"], token=self._runner.token, until=until)
            if not is_held and self._renewed_job is running_job:
                log.warning(
                    "The claim of an executing job was lost", job=str(running_job["_id"]), name=running_job["name"]
                )
        except Error as error:
            log.warning("A lease could not be renewed", job=str(running_job["_id"]), error=reason(error))


def _text(value: object) -> str:
    """Return a value as text, truncated and with valid UTF-8 only."""
    try:
        return str(value)[:MAX_ERROR_LENGTH].encode("utf-8", "replace").decode()
    except Exception as error:
        return f"its text cannot be rendered ({type(error).__name__})"


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
