"""Running through one queue: its jobs one after another, each under a lease that a heartbeat renews.

Guarantee: of the jobs of one name one runs at a time. A job counts as done only when the write that says so found this
worker's claim; what a worker does whose claim was lost changes nothing in the record.
"""

from __future__ import annotations

import os
import socket
import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Event, Thread

from models import job, job_attempt, job_leader, job_queue
from models.database import OUTAGES, Document, Error
from models.job import Busy, State
from models.job_attempt import Outcome
from queue_manager.core.clock import seconds
from queue_manager.core.errors import PermanentError, reason
from queue_manager.core.log import get_logger
from queue_manager.core.retry import RetryPolicy
from services.job_queues.registry import Registry, wants_run

BACKOFF = RetryPolicy(max_attempts=None, base=seconds(5), jitter=True)
PAGE = 32  # jobs read at a time
FRESH = 0.2  # seconds; after that the order, a pause and the leader are looked at again
AGAIN = 0.5  # seconds between two tries to write how a job ended
PROGRESS_EVERY = 0.5  # seconds between two writes of one job's progress
LONGEST_ERROR = 2_000  # characters
BEATS = 3  # renewals in the time of one lease, so that two may fail

log = get_logger("QM/jobs")


@dataclass(kw_only=True)
class RunReport:
    """What one run through a queue did: attempts by how they ended, and why it stopped early, if it did."""

    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    """Results that were refused, because the claim was lost."""
    stopped: str | None = None


@dataclass(kw_only=True)
class Runner:
    """Runs the jobs of one name.

    Args:
        clock: the server's.
        lease: how long a job is held without a sign of life.
        budget: after so long the queue is handed on, so that others get their turn.
        token: who holds the queue, and its jobs while they execute.
        epoch: of the leader that handed the queue out; `None`: a person did.
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
    _read_at: float = -FRESH

    def run(self) -> RunReport:
        """Run what is due, one job after another, until nothing is, or the time is over."""
        end = time.monotonic() + self.budget.total_seconds()
        with _Heart(self) as heart:
            ended: tuple[Document, Outcome] | None = None
            while True:
                following = self._following_after(ended) if time.monotonic() < end else None
                if ended is None and following is None:
                    return self.report
                current = self._move_on(ended, following)
                ended = None
                if current is not None:
                    ended = (current, self._execute(current, heart))

    def _following_after(self, ended: tuple[Document, Outcome] | None) -> Document | None:
        try:
            return self._following()
        except Error:
            if ended is None:
                raise
            return None  # first it is written how the last job ended, through this outage too

    def _following(self) -> Document | None:
        """Return the next job in order. The order is that of the last look, a moment ago at the most."""
        if self.report.stopped:
            return None
        if time.monotonic() - self._read_at > FRESH or not self._page:
            self._page.clear()
            self.report.stopped = self._reason_to_stop()
            if self.report.stopped is None:
                self._page.extend(job.next_jobs(self.name, now=self.clock(), limit=PAGE))
            self._read_at = time.monotonic()
        return self._page.popleft() if self._page else None

    def _reason_to_stop(self) -> str | None:
        if self.epoch is not None and job_leader.current_epoch() != self.epoch:
            return "another leader has taken over"
        return "paused" if job_queue.is_paused(self.name) else None

    def _move_on(self, ended: tuple[Document, Outcome] | None, following: Document | None) -> Document | None:
        """Write how a job ended and start the next, together where both are to be done; return the one started."""
        if ended is None:
            return self._start(following) if following is not None else None
        done, is_started = self._persist(*ended, following)
        self._count(ended[1], done)
        return following if is_started else None

    def _start(self, following: Document) -> Document | None:
        now = self.clock()
        try:
            is_started = job_attempt.start(
                following, token=self.token, now=now, until=now + self.lease, worker=_this_process()
            )
        except Busy:
            self._page.clear()
            self.report.stopped = "another run executes a job of this name"
            return None
        return following if is_started else None

    def _persist(self, done: Document, outcome: Outcome, following: Document | None) -> tuple[bool, bool]:
        """Write the outcome, through an outage of the database that is shorter than the lease."""
        end = time.monotonic() + self.lease.total_seconds()
        try:
            return self._write(done, outcome, following)
        except OUTAGES as error:
            log.warning(
                "The end of a job could not be written; trying again", job=str(done["_id"]), error=reason(error)
            )
        while True:
            time.sleep(AGAIN)
            try:
                is_written, _ = self._write(done, outcome, None)
                return is_written, following is not None and job_attempt.is_held(following, self.token)
            except OUTAGES:
                if time.monotonic() > end:
                    raise

    def _write(self, done: Document, outcome: Outcome, following: Document | None) -> tuple[bool, bool]:
        now = self.clock()
        if following is None:
            return job_attempt.finish(done, outcome, token=self.token, now=now), False
        until = now + self.lease
        return job_attempt.finish_and_start(
            done, outcome, following, token=self.token, now=now, until=until, worker=_this_process()
        )

    def _execute(self, current: Document, heart: _Heart) -> Outcome:
        began = time.monotonic()
        run = Run(current, self.token)
        try:
            with heart.beating_for(current):
                work = self.registry.work_of(self.name)
                work(*current["arguments"], **({"run": run} if wants_run(work) else {}))
        except (Exception, SystemExit, CancelledError) as error:  # what a job may raise without ending its worker
            return self._failure(current, error, _ms_since(began))
        return Outcome(state=State.SUCCESS, took_ms=_ms_since(began))

    def _failure(self, current: Document, error: BaseException, took_ms: int) -> Outcome:
        attempt = current["attempts"] + 1
        said = f"{type(error).__name__}: {_text(error)}"
        log.warning(f"Job failed: {said}", job=str(current["_id"]), name=self.name, attempt=attempt)
        rest = None if isinstance(error, PermanentError) else BACKOFF.wait_before(attempt + 1)
        return Outcome(state=State.FAILURE, rest=rest, error=said, took_ms=took_ms)

    def _count(self, outcome: Outcome, is_written: bool) -> None:
        if not is_written:
            log.warning("A result was refused: the claim was lost, and the job is another's", name=self.name)
            self.report.lost += 1
        elif outcome.state is State.SUCCESS:
            self.report.succeeded += 1
        else:
            self.report.failed += 1


class Run:
    """What a job may know of its run: its `id`, its `attempt` (from 1), and how to show its progress."""

    def __init__(self, document: Document, token: str) -> None:
        self.id, self.attempt = str(document["_id"]), int(document["attempts"]) + 1
        self._document, self._token = document, token
        self._shown_at = -PROGRESS_EVERY

    def progress(self, percent: float, note: str = "") -> None:
        """Show how far the job is, 0 to 100; written at most twice a second. Never fails."""
        is_last = percent >= 100
        if time.monotonic() - self._shown_at < PROGRESS_EVERY and not is_last:
            return
        self._shown_at = time.monotonic()
        shown = {"percent": min(max(float(percent), 0.0), 100.0), "note": _text(note)}
        try:
            job_attempt.note_progress(self._document["_id"], shown, token=self._token)
        except Error as error:
            log.warning("Progress could not be written", job=self.id, error=reason(error))  # it is for people


class _Heart:
    """Renews the lease of the job that executes: one thread for a whole run, started when a job takes long."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._beating_for: Document | None = None
        self._is_over = Event()
        self._thread = Thread(target=self._beat, name="job-heartbeat", daemon=True)

    def __enter__(self) -> _Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @contextmanager
    def beating_for(self, document: Document) -> Iterator[None]:
        self._beating_for = document
        try:
            yield
        finally:
            self._beating_for = None

    def _beat(self) -> None:
        while not self._is_over.wait(self._runner.lease.total_seconds() / BEATS):
            if (current := self._beating_for) is not None:
                self._renew(current)

    def _renew(self, current: Document) -> None:
        try:
            until = self._runner.clock() + self._runner.lease
            is_held = job_attempt.renew(current["_id"], token=self._runner.token, until=until)
            if not is_held and self._beating_for is current:
                log.warning("The claim of an executing job was lost", job=str(current["_id"]), name=current["name"])
        except Error as error:
            log.warning("A lease could not be renewed", job=str(current["_id"]), error=reason(error))


def _text(said: object) -> str:
    """Return what `said` says, cut to a length and to characters that the database can keep."""
    try:
        return str(said)[:LONGEST_ERROR].encode("utf-8", "replace").decode()
    except Exception as error:
        return f"its text cannot be read ({type(error).__name__})"


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
