"""Runner of one queue: executes its jobs one after another, each under a lease that a heartbeat renews.

Guarantee: at most one job of a name is executing. A result is recorded only while this worker holds the claim of the
job; a worker that lost the claim changes nothing. The worker's main process renews the claim, too, because a job that
holds the GIL keeps the heartbeat of this process from running (`queue_manager/worker/heartbeat.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from threading import Event, RLock

from billiard.common import terminate_handler_fired

from models import job, job_attempt, job_queue
from models.database import Document, Error, estimated_now
from models.job import JobState, NameBusy
from models.job_attempt import RENEWALS_PER_LEASE, EndedAttempt, JobOutcome, TimeLimit, may_share_batch
from queue_manager.core import shutdown
from queue_manager.core.background import in_thread
from queue_manager.core.clock import minutes
from queue_manager.core.errors import Contended, FunctionExited, PermanentError, drop_tracebacks, is_expected, reason
from queue_manager.core.functions import contained, require_done
from queue_manager.core.log import get_logger
from queue_manager.telemetry import error_reports
from services.job_queues.attempt_counts import AttemptCounts
from services.job_queues.job_run import JOB_RETRY_POLICY, JobRun, as_text
from services.job_queues.registry import Registry, UnknownJob
from services.job_queues.repetition import due_after_success

MIN_JOBS_PER_READ, JOBS_PER_READ = 32, 128  # while each job is started alone; while batches are
BATCH_TIME = 0.1  # seconds in which the jobs of a batch are started; their outcomes are written afterwards
MAX_JOBS_PER_BATCH = 64
MAX_RESERVED_TIME = job_attempt.RESERVATION.total_seconds() / 2  # seconds; clocks may differ by the rest
READ_TTL = 0.2  # seconds until the order of jobs, a pause and the leader are read again
WRITE_RETRY_DELAY = 0.5  # seconds between two attempts to write an outcome
UNREGISTERED_DELAY = minutes(1)  # before a job is retried that reached a worker without its function

log = get_logger("QM/jobs")


@dataclass(kw_only=True)
class RunReport:
    """Result of one run: the number of attempts by outcome, and the reason of an early stop."""

    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    lost: int = 0
    """Results that were refused because the claim was lost."""
    stopped: str | None = None


@dataclass(kw_only=True)
class Runner:
    """Runs the jobs of one name.

    While jobs are short, one write starts a batch of them and records the outcomes of the previous batch. The first job
    is claimed and the others are reserved; a job that turns out to be long gets the claim while it runs.

    Args:
        clock: returns the time of the database server.
        lease: time until the claim of a job expires without renewal.
        budget: maximum duration of a run.
        token: identifies this run in the claims of its jobs.
        epoch: of the dispatching leader; `None` if an operator started the run.
        timeout: time limit of an attempt whose function declares none; zero means unlimited.
        grace: time to stop after the time limit.
    """

    name: str
    registry: Registry
    clock: Callable[[], datetime]
    lease: timedelta
    budget: timedelta
    token: str
    epoch: int | None
    timeout: timedelta = timedelta(0)
    grace: timedelta = timedelta(0)
    report: RunReport = field(default_factory=RunReport)
    _next_jobs: deque[Document] = field(default_factory=deque)
    _read_at: float = -READ_TTL
    _batch: deque[Document] = field(default_factory=deque)
    _batch_ends_at: float = 0.0
    _slowest: float = 0.0
    """Seconds that the slowest job of the last batch took."""
    _ended: list[EndedAttempt] = field(default_factory=list)
    """Attempts whose outcome is not written yet."""
    _claimed: Document | None = None
    """The job with the claim of this run: the one that executes, or the first of its batch."""
    _executing: Document | None = None
    _executing_since: float = 0.0
    _lock: RLock = field(default_factory=RLock)
    """Held while `_executing`, `_claimed` and `_ended` change: the heartbeat may hand the claim over."""

    def __post_init__(self) -> None:
        self._counts = AttemptCounts(self.name)

    def run(self) -> RunReport:
        """Run the due jobs one after another until none is due, the budget is used, or the worker shuts down.

        A job whose process is told to end meanwhile is put back: its attempt does not count.
        """
        end = time.monotonic() + self.budget.total_seconds()
        with self._heartbeat():
            try:
                while (started := self._start_next(end)) is not None:
                    self._execute(started)
            finally:
                if self._ended:  # a job was interrupted
                    self._finish_and_start([])
        if self.report == RunReport() and (malformed := job.fail_malformed(self.name, self.clock())):
            # Otherwise each scan would dispatch the name again.
            log.warning("Malformed jobs cannot be started and have failed", name=self.name, jobs=malformed)
        return self.report

    # The next jobs

    def _start_next(self, end: float) -> Document | None:
        """Return the next job, which is started; `None` if there is none, and every outcome is written."""
        while True:
            if self._batch and time.monotonic() < min(end, self._batch_ends_at):
                return self._batch.popleft()
            self._next_jobs.extendleft(reversed(self._batch))
            self._batch.clear()
            batch = self._next_batch() if time.monotonic() < end else []
            if not batch and not self._ended:
                return None
            began = time.monotonic()
            started = self._finish_and_start(batch) if self._ended else self._start(batch[0])
            if len(started) < len(batch):
                self._next_jobs.clear()  # read again: jobs of the batch that were not started come first
            if started:
                self._batch.extend(started[1:])
                self._batch_ends_at = min(began + MAX_RESERVED_TIME, time.monotonic() + BATCH_TIME)
                return started[0]

    def _next_batch(self) -> list[Document]:
        try:
            first = self._next_job()
        except Error:
            if not self._ended:
                raise
            return []  # the outcomes must be written first, despite the outage
        if first is None:
            return []
        batch = [first]
        # Jobs with a time limit are started one by one, so that the one that executes is known to other processes.
        size = self._batch_size() if self._ended and self._limit is None else 1
        while len(batch) < size and self._next_jobs and may_share_batch(first) and may_share_batch(self._next_jobs[0]):
            batch.append(self._next_jobs.popleft())
        return batch

    def _batch_size(self) -> int:
        """Return the number of jobs that are expected to end within `BATCH_TIME`."""
        return max(1, min(MAX_JOBS_PER_BATCH, int(BATCH_TIME / max(self._slowest, BATCH_TIME / MAX_JOBS_PER_BATCH))))

    def _next_job(self) -> Document | None:
        """Return the next job. The order of jobs is at most `READ_TTL` old."""
        if self.report.stopped or shutdown.has_begun():
            return None
        if time.monotonic() - self._read_at > READ_TTL:
            self._next_jobs.clear()
            self._read_at = time.monotonic()
            self.report.stopped = self._reason_to_stop()
            if self.report.stopped:
                return None
        if not self._next_jobs:
            limit = MIN_JOBS_PER_READ if self._batch_size() == 1 else JOBS_PER_READ
            ended = [one.job["_id"] for one in self._ended]  # those that were reserved are still waiting
            self._next_jobs.extend(job.next_jobs(self.name, now=self.clock(), limit=limit, excluded=ended))
        return self._next_jobs.popleft() if self._next_jobs else None

    def _reason_to_stop(self) -> str | None:
        if self.epoch is not None and job_queue.leader_epoch() != self.epoch:
            return "another leader has taken over"
        return "paused" if job_queue.is_paused(self.name) else None

    # Writes

    def _start(self, next_job: Document) -> list[Document]:
        began, now = time.monotonic(), self.clock()
        try:
            is_started = job_attempt.start(
                next_job, token=self.token, now=now, until=now + self.lease, limit=self._limit
            )
        except NameBusy:
            self._next_jobs.clear()
            self.report.stopped = "another run executes a job of this name"
            return []
        started = self._unless_lost([next_job] if is_started else [], began)
        self._claimed = started[0] if started else None
        return started

    def _finish_and_start(self, batch: list[Document]) -> list[Document]:
        """Write the outcomes and start a batch in one round trip; return the jobs that were started."""
        # The claimed one last: until then no other run can start the reserved ones, however much this one was delayed.
        ended, self._ended = sorted(self._ended, key=lambda one: not one.is_reserved), []
        began = time.monotonic()
        stored, started = self._write_with_retry(ended, batch)
        started = self._unless_lost(started, began)
        for one, is_stored in zip(ended, stored, strict=True):
            self._count(one.outcome, is_stored)
        self._claimed = started[0] if started else None
        self._slowest = 0.0
        return started

    def _unless_lost(self, started: list[Document], began: float) -> list[Document]:
        """Return the jobs that were started, unless that took so long that their lease has ended and they were lost."""
        if not started or time.monotonic() - began < self.lease.total_seconds() / 3:
            return started
        if self._renew_start(started[0]):
            return started
        log.warning("The claim of a job was lost before it was executed", job=str(started[0]["_id"]), name=self.name)
        return []

    def _write_with_retry(self, ended: list[EndedAttempt], batch: list[Document]) -> tuple[list[bool], list[Document]]:
        """Write the outcomes; retry any error for one lease, because a job whose outcome is lost is executed again."""
        end = time.monotonic() + self.lease.total_seconds()
        try:
            now = self.clock()
            return job_attempt.finish_and_start(
                ended, batch, token=self.token, now=now, until=now + self.lease, limit=self._limit
            )
        except Error as error:
            log.warning(
                "The outcome of a job could not be written and will be retried",
                job=str(ended[0].job["_id"]),
                error=reason(error),
            )
        while True:
            time.sleep(WRITE_RETRY_DELAY)
            try:
                now = self.clock()
                stored = [job_attempt.finish(one.job, one.outcome, token=self.token, now=now) for one in ended]
                # A write, so that a majority knows the claim before the job is executed.
                return stored, [one for one in batch[:1] if self._renew_start(one)]
            except Error:
                if time.monotonic() > end:
                    raise

    def _renew_start(self, started: Document) -> bool:
        """Extend the lease and the time limit of a job whose start took long; return False if the claim was lost."""
        now = self.clock()
        return job_attempt.renew_start(
            started["_id"], token=self.token, now=now, until=now + self.lease, limit=self._limit
        )

    def _count(self, outcome: JobOutcome, is_written: bool) -> None:
        if not is_written:
            log.warning("A result was refused, because the claim of the job was lost", name=self.name)
            self.report.lost += 1
            return
        self._counts.add(outcome)
        if outcome.state is JobState.SUCCESS:
            self.report.succeeded += 1
        elif outcome.state is JobState.CANCELED:
            self.report.canceled += 1
        elif outcome.state is JobState.FAILURE:
            self.report.failed += 1

    # Execution

    @cached_property
    def _limit(self) -> TimeLimit | None:
        """The time limit of this name."""
        timeout = self.registry.timeout_for(self.name) or self.timeout
        return TimeLimit(timeout=timeout, grace=self.grace) if timeout else None

    def _execute(self, started: Document) -> None:
        began = time.monotonic()
        timeout = None if self._limit is None else self._limit.timeout
        run = JobRun(started, self.token, claim=self._claim_executing, timeout=timeout)
        self._executing_since, self._executing = began, started
        failed: BaseException | None = None
        due: datetime | None = None
        try:
            registered = self.registry.find(self.name)
            with contained():
                result = registered.call(started["arguments"], run)
            require_done(result, f"The job {self.name}")
            due = self._next_due(started)
        except BaseException as error:  # also the one that ends this process
            failed = error
        finally:
            with self._lock:
                self._executing = None
        is_interrupted = failed is not None and terminate_handler_fired()
        is_reserved = started is not self._claimed
        took_ms = round((time.monotonic() - began) * 1000)
        if (stop := run.stop_at_end(is_final=is_reserved or (failed is None and due is None))) is not None:
            log.warning(f"Job {stop.text}", job=run.id, name=self.name, attempt=run.attempt)
            outcome = stop.outcome(run.attempt, took_ms=took_ms)
        elif is_interrupted:
            outcome = JobOutcome(state=JobState.PENDING, is_counted=False, took_ms=took_ms)
        elif failed is not None:
            outcome = self._failure(run, failed, took_ms)
        else:
            outcome = JobOutcome(state=JobState.SUCCESS, took_ms=took_ms, next_due=due)
            self._counts.add_durations(started["waiting"], took_ms)
        self._ended.append(EndedAttempt(job=started, outcome=outcome, is_reserved=is_reserved))
        self._slowest = max(self._slowest, time.monotonic() - began)
        if failed is not None:
            drop_tracebacks(failed)
            if is_interrupted:
                raise failed

    def _next_due(self, started: Document) -> datetime | None:
        """Return the next due time of a repeating job that succeeded. An outage must not make that a failure."""
        if (repetition := started.get("repetition")) is None:
            return None
        try:
            now = self.clock()
        except Error:
            now = estimated_now()
        return due_after_success(repetition, max(now, started["waiting"]))  # an estimate may be earlier than the start

    def _failure(self, run: JobRun, error: BaseException, took_ms: int) -> JobOutcome:
        message = as_text(error) if isinstance(error, FunctionExited) else f"{type(error).__name__}: {as_text(error)}"
        traced = None if is_expected(error) or run.attempt & (run.attempt - 1) else error  # at attempts 1, 2, 4, 8, …
        log.warning(f"Job failed: {message}", job=run.id, name=self.name, attempt=run.attempt, exc_info=traced)
        if isinstance(error, UnknownJob) and self.name not in self.registry.names():  # not an error of the function
            # The other jobs are left to a worker that has the function, such as a newer one during a deployment.
            self.report.stopped = "this worker has no function for jobs of this name"
            return JobOutcome(
                state=JobState.FAILURE, backoff=UNREGISTERED_DELAY, error=message, took_ms=took_ms, is_counted=False
            )
        backoff = None if isinstance(error, PermanentError) else JOB_RETRY_POLICY.wait_before(run.attempt + 1)
        if backoff is None:
            error_reports.report(error, where=f"job {self.name}", job=run.id, attempts=run.attempt)
        return JobOutcome(state=JobState.FAILURE, backoff=backoff, error=message, took_ms=took_ms)

    # Heartbeat

    @contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Renew the lease of the claimed job, hand it over to a long one, and write counts, while the block runs."""
        renewal = self.lease.total_seconds() / RENEWALS_PER_LEASE

        def beat(is_over: Event) -> None:
            renewed_at = time.monotonic()
            while not is_over.wait(min(BATCH_TIME, renewal)):
                now = time.monotonic()
                if now - self._executing_since > BATCH_TIME:
                    self._claim_or_log()
                if now - renewed_at >= renewal * 0.9 and self._renew():
                    renewed_at = now
                self._counts.write_at_intervals()
            self._counts.write()

        with in_thread(beat, name="job-heartbeat"):
            yield

    def _claim_or_log(self) -> None:
        try:
            self._claim_executing()
        except Contended:
            pass  # the next heartbeat tries again
        except Error as error:
            log.warning("A reserved job that runs for long could not be claimed", name=self.name, error=reason(error))

    def _claim_executing(self) -> None:
        """Give the claim to the job that executes, if it was only reserved, and write the outcomes before it."""
        with self._lock:
            executing = self._executing
            if executing is None or executing is self._claimed:
                return
            now = self.clock()
            is_claimed = job_attempt.hand_over(
                self._ended, executing, token=self.token, now=now, until=now + self.lease, batch=[*self._batch]
            )
            self._claimed = executing
            if is_claimed:
                for one in self._ended:
                    self._count(one.outcome, is_written=True)
                self._ended.clear()
            else:
                log.warning("The claim of an executing job was lost", job=str(executing["_id"]), name=self.name)

    def _renew(self) -> bool:
        """Renew the lease of the claimed job; return False if that must be tried again at once."""
        if self._executing is None or (claimed := self._claimed) is None:
            return True
        id = str(claimed["_id"])
        try:
            is_held = job_attempt.renew(claimed["_id"], token=self.token, until=self.clock() + self.lease)
            if not is_held and self._executing is not None and self._claimed is claimed:
                log.warning("The claim of an executing job was lost", job=id, name=self.name)
        except Error as error:
            log.warning("A lease could not be renewed", job=id, error=reason(error))
            return False
        return True
