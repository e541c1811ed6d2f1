"""Operations on jobs: store, cancel, reschedule, retry, list and delete jobs; pause queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from bson import ObjectId

from models import executing_job, foreign_job, job, job_counts, job_operations, job_pages, job_queue
from models.database import Document, server_now
from models.executing_job import ExecutingJob
from models.job import INACTIVE_STATES, LIVE_STATES, RESCHEDULABLE_STATES, JobState
from models.job_pages import JobQuery
from queue_manager.core.errors import AppError, Contended, prefix_fields
from queue_manager.core.settings import settings
from queue_manager.pauses import PauseState
from services.job_queues.fields import (
    InvalidJob,
    checked_arguments,
    checked_due,
    checked_name,
    checked_priority,
    checked_state,
    checked_states,
    invalid_id,
    job_key,
    new_job,
    read_job_id,
)
from services.job_queues.registry import Registry, UnknownJob, registry
from services.job_queues.repetition import checked_repetition, first_due

INSERT_BATCH_SIZE = 1_000
DELETION_BATCH_SIZE = 250  # jobs that one transaction deletes; 1,000 took longer than 2.5 s on a busy machine
RESERVATION_TIMEOUT = 2.0  # seconds that a change waits for a run that has reserved the job; longer than a reservation
RESERVATION_CHECK_INTERVAL = 0.02  # seconds

JobOperation = Callable[..., Document | None]
"""A function of `job_operations`, which is called with a job and `now`."""
OnChange = Callable[[Document, Document], object]
"""Is called with a job as an operation found it and as it left it."""


class WrongState(AppError):
    """The state of the job does not allow the operation."""


@dataclass(frozen=True, kw_only=True)
class StoredJobs:
    """Result of `run_many`."""

    jobs: list[Document | None]
    """The job of each call; `None` if a unique or singular job already exists."""

    @property
    def stored(self) -> int:
        return sum(one is not None for one in self.jobs)

    @property
    def blocked(self) -> int:
        return len(self.jobs) - self.stored


class Jobs:
    """The jobs in the database. `clock` returns the time of the database server.

    Methods that change a job raise `Contended` while another transaction has locked it.
    """

    def __init__(self, registry: Registry, *, clock: Callable[[], datetime]) -> None:
        self._registry, self._clock = registry, clock

    def run(
        self,
        name: str,
        *arguments: Any,
        at: datetime | None = None,
        delay: timedelta | None = None,
        priority: int = 0,
        unique: bool = False,
        singular: bool = False,
        every: timedelta | None = None,
        cron: str | None = None,
    ) -> Document | None:
        """Store a job and return it; `None` if a unique or singular job already exists.

        A repeating job is singular. After a success it is pending again, due at its next time.

        Args:
            at, delay: due time, or delay until then; the default is now.
            priority: -100 to 100, higher first.
            unique: only if there is no job of the same name and arguments, in any state.
            singular: only if no such job is pending, failed or executing.
            every, cron: repeats the job, counted from the first due time, or at the times of a cron expression in UTC.

        Raises:
            UnknownJob: no function is registered for the name.
            InvalidJob: names the argument, or the parameter of the function. Nothing is stored.
        """
        self._registry.find(checked_name(name)).check_arguments(name, arguments)
        now, repetition = self._clock(), checked_repetition(every, cron)
        due = first_due(repetition, now) if at is None and delay is None else checked_due(at, delay, now)
        document = new_job(name, arguments, due=due, priority=priority, repetition=repetition, now=now)
        refused = job.insert([document], unique=unique, singular=singular or bool(repetition))
        return None if refused else document

    def run_many(
        self,
        name: str,
        calls: Iterable[Sequence[Any]],
        *,
        at: datetime | None = None,
        delay: timedelta | None = None,
        priority: int = 0,
        unique: bool = False,
        singular: bool = False,
    ) -> StoredJobs:
        """Store a job for each of `calls`, which are the arguments of one job each; the options are those of `run`.

        All are checked before the first is stored. They are stored by the thousand: after an error of the database some
        may be stored, which `unique` recognises when the call is repeated.

        Raises:
            UnknownJob, InvalidJob: like `run`; the field has the position of the call, as in `calls[3].arguments`.
        """
        checked_name(name)
        now = self._clock()
        due, new = checked_due(at, delay, now), list[Document]()
        for number, arguments in enumerate(calls):
            if not isinstance(arguments, list | tuple):
                raise InvalidJob(f"calls[{number}]", "must be a list or tuple of the arguments of one job")
            with prefix_fields(f"calls[{number}]."):
                self._registry.find(name).check_arguments(name, arguments)
                new.append(new_job(name, arguments, due=due, priority=priority, repetition={}, now=now))
        stored: list[Document | None] = []
        for begin in range(0, len(new), INSERT_BATCH_SIZE):
            some = new[begin : begin + INSERT_BATCH_SIZE]
            refused = job.insert(some, unique=unique, singular=singular)
            stored += [None if number in refused else one for number, one in enumerate(some)]
        return StoredJobs(jobs=stored)

    def cancel(self, id: str, *, on_change: OnChange | None = None) -> Document:
        """Cancel a pending or failed job, or ask an executing one to stop; return the job.

        An executing job is returned as it is, and becomes `canceled` when its function has stopped. After
        JOBS_GRACE_SECONDS its process is killed. If the function finishes its work instead, the job succeeds; a
        repeating one is canceled in any case.

        Raises:
            WrongState: the job is successful or canceled.
            UnknownJob: there is no such job.
        """
        cancel = partial(job_operations.cancel, grace=timedelta(seconds=settings().jobs_grace_seconds))
        return self._change(id, cancel, "cannot be canceled", LIVE_STATES, on_change)

    def reschedule(
        self,
        id: str,
        *,
        at: datetime | None = None,
        delay: timedelta | None = None,
        priority: int | None = None,
        on_change: OnChange | None = None,
    ) -> Document:
        """Make a pending, failed or canceled job pending with another due time, and with `priority` if it is given.

        With `priority` only, its state and its due time are kept.

        Raises:
            WrongState: the job is executing or successful.
            DuplicateJob: the job is singular, and another with its name and arguments is live.
            InvalidJob, UnknownJob.
        """
        change: JobOperation
        checked = None if priority is None else checked_priority(priority)
        if at is not None or delay is not None:
            due = checked_due(at, delay, self._clock())
            change = partial(job_operations.make_due, due=due, priority=checked)
        elif checked is not None:
            change = partial(job_operations.set_priority, priority=checked)
        else:
            raise InvalidJob("at", "one of `at`, `delay` and `priority` must be given")
        return self._change(id, change, "cannot be rescheduled", RESCHEDULABLE_STATES, on_change)

    def retry(self, id: str, *, states: Sequence[str] = INACTIVE_STATES, on_change: OnChange | None = None) -> Document:
        """Make a job due now if it is in one of `states`, and not executing. Raises like `reschedule`."""
        wanted = checked_states(states)
        allowed = [state for state in INACTIVE_STATES if state in wanted]
        is_limited = 0 < len(allowed) < len(INACTIVE_STATES)
        refusal = f"was to be retried only if {' or '.join(allowed)}" if is_limited else "cannot be retried"
        make_due = partial(job_operations.make_due, due=self._clock(), priority=None)
        return self._change(id, make_due, refusal, allowed, on_change)

    def remove(self, id: str, *, keep: job_operations.KeepJobs | None = None) -> Document:
        """Delete a job and return it. Raises `WrongState` for a job that is executing or has no state, `UnknownJob`.

        Args:
            keep: stores what is deleted, in the transaction that deletes it.
        """
        return self._change(id, partial(job_operations.remove, keep=keep), "cannot be removed", INACTIVE_STATES)

    def get(self, id: str) -> Document:
        """Return a job, or the document of another program with this id. Raises `UnknownJob`."""
        found = job.get_any(str(id))
        if found is None:
            if not ObjectId.is_valid(str(id)):
                raise invalid_id(id)
            raise UnknownJob(f"There is no job {id}")
        return found

    def find(self, name: str, *arguments: Any, limit: int = 50) -> list[Document]:
        """Return up to `limit` jobs with this name and these arguments, newest first."""
        _check_limit(limit)
        return job.find(job_key(name, checked_arguments(arguments)), limit=limit)

    def list(
        self, *, name: str | None = None, state: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Document]:
        """Return jobs, newest first, after the job whose id is `before`, as `id_text` writes it."""
        _check_limit(limit)
        query = JobQuery(
            name=None if name is None else checked_name(name),
            state=None if state is None else checked_state(state),
            after=None if before is None else (read_job_id(before),),
        )
        return job_pages.page(query, limit=limit).jobs

    def count(
        self, *, name: str | None = None, state: str | None = None, read: job_counts.ReadCounts = job_counts.by_name
    ) -> int:
        """Return the number of jobs of a name or of all, in a state or in any. Raises `InvalidJob`."""
        wanted = [*JobState] if state is None else [checked_state(state)]
        return job_counts.total(wanted, name, read=read)

    def clear(self, states: Iterable[str], name: str | None = None) -> int:
        """Delete the jobs in these states, of one name or of all names, except declared ones; return their number.

        Raises `InvalidJob`: executing jobs cannot be deleted.
        """
        return sum(self.clear_in_batches(states, name))

    def clear_in_batches(
        self, states: Iterable[str], name: str | None = None, *, keep: job_operations.KeepJobs | None = None
    ) -> Iterator[int]:
        """Delete like `clear`; yield the number deleted by each transaction, 0 if others have locked some of its jobs.

        `keep` stores what is deleted, in the transactions that delete it.

        Raises `Contended`: a single job is locked.
        """
        wanted, of = _deletable(states), None if name is None else checked_name(name)
        size, has_more = DELETION_BATCH_SIZE, True
        while has_more:  # jobs that enter the states after the last batch are left, so that this ends
            try:
                deleted, has_more = job_operations.clear(wanted, of, now=self._clock(), limit=size, keep=keep)
            except Contended:
                if size == 1:
                    raise
                size = max(1, size // 10)  # runs change some of so many jobs all the time
                yield 0
                continue
            size = min(2 * size, DELETION_BATCH_SIZE)
            yield deleted

    def count_up_to(self, limit: int, states: Iterable[str], name: str | None = None) -> int:
        """Return how many jobs `clear` would delete, at most `limit`, which bounds the cost. Raises like `clear`."""
        return job_operations.count_up_to(limit, _deletable(states), None if name is None else checked_name(name))

    def pause(self, names: Sequence[str], *, reason: str | None = None, by: str | None = None) -> None:
        """Pause queues: within a second, no job of these names is started any more. One that is executing ends.

        Args:
            reason: why, for the people who see it.
            by: who pauses them.
        """
        made = PauseState(at=self._clock(), by=by, reason=reason)
        job_queue.pause(_checked_names(names), made)

    def resume(self, names: Sequence[str]) -> None:
        """Resume paused queues."""
        job_queue.resume(_checked_names(names))

    def status(self, *, read: job_counts.ReadCounts = job_counts.by_name) -> dict[str, Any]:
        """Return `{queues, leader, other_documents}`.

        Each of `queues` also has `states`, the number of its jobs by state. `leader` is the dispatching leader.
        `other_documents` is the number of documents that are not jobs, up to `foreign_job.MAX_FOREIGN_COUNT`.
        """
        counts = read()
        queues = [
            {**queue, "states": {state.value: counts.get(queue["name"], {}).get(state, 0) for state in JobState}}
            for queue in self.queues(counts)
        ]
        return {"queues": queues, "leader": job_queue.leader(), "other_documents": foreign_job.count()}

    def queues(self, names: Iterable[str] | None = None) -> Sequence[dict[str, Any]]:
        """Return every queue: the names that have jobs (or unfinished ones, and `names`), a function, or a pause.

        Each is `{name, is_paused, pause, running, oldest_due, next_due}`: when, by whom and why it was paused; the
        executing job; the due times of the oldest job that is due and of the next that is not. Jobs are not counted, so
        the cost grows with the number of names only.
        """
        with_jobs = job.names() if names is None else names
        now, paused = self._clock(), job_queue.pauses()
        oldest_due, next_due = job.due_names(now), job.later_names(now)
        running = {executing.name: _as_running(executing) for executing in executing_job.find()}
        return [
            {
                "name": name,
                "is_paused": name in paused,
                "pause": asdict(paused[name]) if name in paused else None,
                "running": running.get(name),
                "oldest_due": oldest_due.get(name),
                "next_due": next_due.get(name),
            }
            for name in sorted({*with_jobs, *oldest_due, *next_due, *running, *paused, *self._registry.names()})
        ]

    def _change(
        self,
        id: str,
        change: JobOperation,
        refusal: str,
        states: Sequence[JobState],
        on_change: OnChange | None = None,
    ) -> Document:
        """Change a job in one of `states` and return it. Raises like `get`, or `WrongState`.

        Waits while a run has reserved it, and tries again if others changed it after it was found.
        """
        ends_at = time.monotonic() + RESERVATION_TIMEOUT
        while (found := self._own(id)).get("state") in states:
            if (changed := change(found, now=self._clock())) is not None:
                if on_change is not None:
                    on_change(found, changed)
                return changed
            if time.monotonic() > ends_at:
                raise WrongState(f"A worker is about to start the job {id}; try again")
            time.sleep(RESERVATION_CHECK_INTERVAL)
        raise WrongState(f"The job {id} is {found.get('state') or 'in no state'} and {refusal}")

    def _own(self, id: str) -> Document:
        """Return a job. Raises like `get`, or `WrongState`: the document is not a job."""
        found = self.get(id)
        if not job.is_job(found):
            raise WrongState(f"The document {id} was stored by another program and is not a job")
        return found


def _deletable(states: Iterable[str]) -> list[JobState]:
    """Return the states. Raises `InvalidJob`."""
    wanted = checked_states(states)
    if JobState.EXECUTING in wanted:
        raise InvalidJob("states", "must not include executing: an executing job cannot be deleted")
    return wanted


def _checked_names(names: Sequence[str]) -> list[str]:
    if isinstance(names, str):  # a sequence of names of one letter
        raise InvalidJob("names", f"must be a list of names, not the string {names!r:.100}")
    return [checked_name(name, field="names") for name in names]


def _as_running(executing: ExecutingJob) -> Document:
    worker = {} if executing.worker is None else {"worker": executing.worker}
    return {"id": executing.id, "claimed_until": executing.claimed_until, **worker}


jobs = Jobs(registry, clock=server_now)
"""The jobs of this installation. Connects on first use."""


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise InvalidJob("limit", "must be at least 1")
