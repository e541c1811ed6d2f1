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
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Any

from models import job, job_attempt, job_queue
from models.database import OUTAGES, Document, Error, server_now
from models.job import JobState, NameBusy
from models.job_attempt import JobOutcome
from queue_manager.core.clock import seconds
from queue_manager.core.errors import ConfigurationError, ContinueLater, NotYetDue, PermanentError, reason
from queue_manager.core.log import get_logger
from queue_manager.core.retry import RetryPolicy
from queue_manager.core.settings import settings
from queue_manager.telemetry import counters
from services.job_queues.dispatch import JOBS_INITIATOR, system
from services.job_queues.registry import Registry, accepts_run, registry
from services.job_queues.repetition import next_due

RUN_BUDGET = seconds(30)  # maximum duration of a run, so that other queues get their turn
JOB_RETRY_POLICY = RetryPolicy(max_attempts=None, base=seconds(5), jitter=True)
JOBS_PER_READ = 32
READ_TTL = 0.2  # seconds until the order of jobs, a pause and the leader are read again
WRITE_RETRY_DELAY = 0.5  # seconds between two attempts to write an outcome
PROGRESS_WRITE_INTERVAL = 0.5  # seconds between two writes of one job's progress
MAX_STORED_ERROR_LENGTH = 2_000  # characters
RENEWALS_PER_LEASE = 3  # so that two renewals may fail

log = get_logger(JOBS_INITIATOR)


def run_queue(name: str, epoch: int | None, *, token: str) -> dict[str, Any]:
    """Run the due jobs of `name` one after another; `token` is the id of this task.

    Returns:
        `{succeeded, failed, lost, stopped}`: number of attempts by outcome, and the reason of an early stop.

    Raises:
        ContinueLater: the time budget is used and more jobs are due.
        NotYetDue: the next job is due before the next dispatch.
        ConfigurationError: jobs may not run in this environment.
    """
    if not settings().allows_jobs:
        raise ConfigurationError(settings().jobs_disabled_reason)
    lease = seconds(settings().jobs_lease_seconds)
    runner = Runner(
        name=name, registry=registry, clock=server_now, lease=lease, budget=RUN_BUDGET, token=token, epoch=epoch
    )
    report = runner.run()
    counters.items(JOBS_INITIATOR, {"done": report.succeeded, "failed": report.failed})
    due = None if report.stopped else job.next_due(name)
    remaining = None if due is None else due - server_now()
    if remaining is None or remaining > system.period(settings()):
        return asdict(report)
    if remaining > timedelta(0):
        raise NotYetDue(remaining)
    raise ContinueLater


@dataclass(kw_only=True)
class RunReport:
    """Result of one run: the number of attempts by outcome, and the reason of an early stop."""

    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    """Results that were refused because the claim was lost."""
    stopped: str | None = None


class JobRun:
    """Context of a running job: its `id`, its `attempt` (from 1, also after each success of a repeating job), and
    `progress`."""

    def __init__(self, document: Document, token: str) -> None:
        self.id = str(document["_id"])
        self.attempt = int(document["attempts"]) - int(document.get("settled", 0)) + 1
        self._document, self._token = document, token
        self._written_at = -PROGRESS_WRITE_INTERVAL

    def progress(self, percent: float, note: str = "") -> None:
        """Report progress from 0 to 100 percent; written at most twice a second. Never raises."""
        is_last = percent >= 100
        if time.monotonic() - self._written_at < PROGRESS_WRITE_INTERVAL and not is_last:
            return
        self._written_at = time.monotonic()
        progress = {"percent": min(max(float(percent), 0.0), 100.0), "note": _text(note)}
        try:
            job_attempt.set_progress(self._document["_id"], progress, token=self._token)
        except Error as error:
            log.warning("Progress could not be written", job=self.id, error=reason(error))


@dataclass(kw_only=True)
class Runner:
    """Runs the jobs of one name.

    Args:
        clock: returns the time of the database server.
        lease: time until the claim of a job expires without renewal.
        budget: maximum duration of a run.
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
    _next_jobs: deque[Document] = field(default_factory=deque)
    _read_at: float = -READ_TTL
    _executing: Document | None = None

    def run(self) -> RunReport:
        """Run the due jobs one after another until none is due or the budget is used."""
        end = time.monotonic() + self.budget.total_seconds()
        ended: tuple[Document, JobOutcome] | None = None
        with self._heartbeat():
            while True:
                next_job = self._next_job_after(ended) if time.monotonic() < end else None
                if ended is None and next_job is None:
                    return self.report
                started = self._finish_and_start(ended, next_job)
                ended = None if started is None else (started, self._execute(started))

    # The next job

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
        if time.monotonic() - self._read_at > READ_TTL or not self._next_jobs:
            self._next_jobs.clear()
            self.report.stopped = self._reason_to_stop()
            if self.report.stopped is None:
                self._next_jobs.extend(job.next_jobs(self.name, now=self.clock(), limit=JOBS_PER_READ))
            self._read_at = time.monotonic()
        return self._next_jobs.popleft() if self._next_jobs else None

    def _reason_to_stop(self) -> str | None:
        if self.epoch is not None and job_queue.leader_epoch() != self.epoch:
            return "another leader has taken over"
        return "paused" if job_queue.is_paused(self.name) else None

    # Writes

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
            self._next_jobs.clear()
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
        return job_attempt.finish_and_start(done, outcome, next_job, token=self.token, now=now, until=now + self.lease)

    def _count(self, outcome: JobOutcome, is_written: bool) -> None:
        if not is_written:
            log.warning("A result was refused, because the claim of the job was lost", name=self.name)
            self.report.lost += 1
        elif outcome.state is JobState.SUCCESS:
            self.report.succeeded += 1
        else:
            self.report.failed += 1

    # Execution

    def _execute(self, started: Document) -> JobOutcome:
        began = time.monotonic()
        run = JobRun(started, self.token)
        self._executing = started
        try:
            function = self.registry.function_for(self.name)
            function(*started["arguments"], **({"run": run} if accepts_run(function) else {}))
            repetition = started.get("repetition")
            due = None if repetition is None else next_due(repetition, self.clock())
        except (Exception, SystemExit, CancelledError) as error:  # errors of a job that must not end the worker
            return self._failure(run, error, _ms_since(began))
        finally:
            self._executing = None
        return JobOutcome(state=JobState.SUCCESS, took_ms=_ms_since(began), next_due=due)

    def _failure(self, run: JobRun, error: BaseException, took_ms: int) -> JobOutcome:
        message = f"{type(error).__name__}: {_text(error)}"
        log.warning(f"Job failed: {message}", job=run.id, name=self.name, attempt=run.attempt)
        backoff = None if isinstance(error, PermanentError) else JOB_RETRY_POLICY.wait_before(run.attempt + 1)
        return JobOutcome(state=JobState.FAILURE, backoff=backoff, error=message, took_ms=took_ms)

    @contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Renew the lease of the executing job, in a thread, until the block ends."""
        is_over = Event()

        def renew_until_over() -> None:
            while not is_over.wait(self.lease.total_seconds() / RENEWALS_PER_LEASE):
                if (executing := self._executing) is not None:
                    self._renew(executing)

        thread = Thread(target=renew_until_over, name="job-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _renew(self, executing: Document) -> None:
        id = executing["_id"]
        try:
            is_held = job_attempt.renew(id, token=self.token, until=self.clock() + self.lease)
            if not is_held and self._executing is executing:
                log.warning("The claim of an executing job was lost", job=str(id), name=self.name)
        except Error as error:
            log.warning("A lease could not be renewed", job=str(id), error=reason(error))


def _text(value: object) -> str:
    """Return a value as text, truncated and with valid UTF-8 only."""
    try:
        return str(value)[:MAX_STORED_ERROR_LENGTH].encode("utf-8", "replace").decode()
    except Exception as error:
        return f"its text cannot be rendered ({type(error).__name__})"


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
