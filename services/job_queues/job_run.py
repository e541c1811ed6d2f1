"""The run that a job's function receives as `run`: progress, cancellation, and a fencing token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from models import job_attempt
from models.database import Document, Error
from models.job import JobState, attempt_of
from models.job_attempt import JobOutcome
from queue_manager.core.clock import seconds
from queue_manager.core.errors import AppError, Contended, reason, rendered
from queue_manager.core.log import get_logger
from queue_manager.core.retry import RetryPolicy

JOB_RETRY_POLICY = RetryPolicy(max_attempts=None, base=seconds(5), jitter=True)
PROGRESS_WRITE_INTERVAL = 0.5  # seconds between two writes of one job's progress
CLAIM_READ_INTERVAL = 1.0  # seconds between two reads of whether a job was canceled
MAX_STORED_ERROR_LENGTH = 2_000  # characters

log = get_logger("QM/jobs")


class JobCancelled(AppError):
    """The function of a job should stop: the job was canceled, exceeded its time limit, or lost its lease."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Why a job stops, and the state in which it ends."""

    text: str
    state: JobState = JobState.FAILURE

    def outcome(self, attempt: int, *, took_ms: int = 0) -> JobOutcome:
        """Return the outcome of the attempt that stopped; a failure is retried with backoff."""
        if self.state is JobState.CANCELED:
            return JobOutcome(state=self.state, took_ms=took_ms)
        backoff = JOB_RETRY_POLICY.wait_before(attempt + 1)
        return JobOutcome(state=self.state, backoff=backoff, error=f"The job {self.text}", took_ms=took_ms)


CANCELED = Stop(text="was canceled", state=JobState.CANCELED)
LEASE_LOST = Stop(text="lost its lease, so that another worker may execute it")


def timed_out(timeout: timedelta) -> Stop:
    return Stop(text=f"exceeded its time limit of {timeout.total_seconds():g} s")


class JobRun:
    """Context of a running job.

    Attributes:
        id: the job's id.
        attempt: counted from 1, also after each success of a repeating job.
    """

    def __init__(
        self, document: Document, token: str, *, claim: Callable[[], None], timeout: timedelta | None = None
    ) -> None:
        self.id = str(document["_id"])
        self.attempt = attempt_of(document) + 1
        self._document, self._token, self._claim, self._timeout = document, token, claim, timeout
        self._claim_read_at = time.monotonic()
        self._ends_at = self._claim_read_at + (timeout.total_seconds() if timeout else 0)
        self._written_at = -PROGRESS_WRITE_INTERVAL
        self._stop: Stop | None = None
        self._noticed: Stop | None = None

    @property
    def is_cancelled(self) -> bool:
        """Whether the function should stop: the job was canceled, exceeded its time limit, or lost its lease.

        A function that returns after this was true has stopped early: the job counts as canceled or failed. The
        database is read at most once a second.
        """
        if self._stop is None and time.monotonic() - self._claim_read_at >= CLAIM_READ_INTERVAL:
            self._read_claim()
        self._noticed = self._current_stop()
        return self._noticed is not None

    def progress(self, percent: float, note: str = "") -> None:
        """Report progress from 0 to 100 percent; written at most twice a second.

        Raises:
            JobCancelled: `is_cancelled` is true. No other error is raised.
        """
        is_last = percent >= 100
        if is_last or time.monotonic() - self._written_at >= PROGRESS_WRITE_INTERVAL:
            self._written_at = time.monotonic()
            self._write({"percent": min(max(0.0, float(percent)), 100.0), "note": as_text(note)})
        if self.is_cancelled:
            assert self._noticed is not None
            raise JobCancelled(f"The job {self._noticed.text}")

    @property
    def fencing_token(self) -> int:
        """A number that is greater for each later attempt of the jobs of this name.

        A resource that refuses smaller numbers than it has seen is safe from a late worker.

        Raises:
            JobCancelled: the job has lost its lease.
            Contended: the transaction of another process has locked the job.
        """
        self._claim()
        found = job_attempt.read_claim(self._document, token=self._token)
        if found is None:
            self._noticed = self._stop = LEASE_LOST
            raise JobCancelled(f"The job {LEASE_LOST.text}")
        return (int(found["fence"].time) << 32) + int(found["fence"].inc)

    def stop_at_end(self, *, is_final: bool) -> Stop | None:
        """Return why the attempt counts as stopped, now that its function has ended.

        Args:
            is_final: the job is done unless the function noticed that it should stop; otherwise a cancellation counts
                even if it was not noticed, because the job would run again.
        """
        if self._noticed is not None or not is_final:
            self._read_claim()
        return CANCELED if self._stop is CANCELED else self._noticed

    def _current_stop(self) -> Stop | None:
        if self._stop is None and self._timeout is not None and time.monotonic() >= self._ends_at:
            self._stop = timed_out(self._timeout)
        return self._stop

    def _write(self, progress: Document) -> None:
        try:
            self._claim()
            self._use(job_attempt.set_progress(self._document, progress, token=self._token))
        except (Error, Contended) as error:
            log.warning("Progress could not be written", job=self.id, error=reason(error))

    def _read_claim(self) -> None:
        try:
            self._claim()
            self._use(job_attempt.read_claim(self._document, token=self._token))
        except (Error, Contended) as error:
            log.warning("Whether the job was canceled could not be read", job=self.id, error=reason(error))

    def _use(self, found: Document | None) -> None:
        self._claim_read_at = time.monotonic()
        if found is None:
            self._stop = LEASE_LOST
        elif "canceled_at" in found["claim"]:
            self._stop = CANCELED


def as_text(value: object) -> str:
    """Return a value, or the message of an error, as valid UTF-8 text, truncated."""
    text = reason(value) if isinstance(value, BaseException) else rendered(lambda: str(value))
    return text[:MAX_STORED_ERROR_LENGTH]
