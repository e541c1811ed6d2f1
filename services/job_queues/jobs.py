"""Operations on jobs: store, cancel, reschedule, retry, list and delete jobs; pause queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from models import foreign_job, job, job_pages, job_queue
from models.database import Document, server_now
from models.job import DuplicateJob, ExecutingJob, JobId, JobState
from models.job_pages import JobPage, JobQuery
from models.listing import Position
from queue_manager.core.errors import AppError
from services.job_queues.fields import (
    InvalidJob,
    checked_arguments,
    checked_due,
    checked_id,
    checked_name,
    checked_priority,
    checked_state,
    is_id,
    job_key,
    other_ids,
    read_job_id,
    search_pattern,
    search_text,
    sort_field,
)
from services.job_queues.registry import Registry, UnknownJob, check_arguments, registry
from services.job_queues.repetition import checked_repetition, next_due

RETRYABLE_STATES = (JobState.PENDING, JobState.FAILURE, JobState.CANCELED, JobState.SUCCESS)
RESCHEDULABLE_STATES = (JobState.PENDING, JobState.FAILURE, JobState.CANCELED)


class WrongState(AppError):
    """The state of the job does not allow the operation."""


class Jobs:
    """The jobs in the database. `clock` returns the time of the database server."""

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
            every, cron: repeats the job, counted from the first due time, or at the times of a cron line in UTC.

        Raises:
            UnknownJob: no function is registered for the name.
            InvalidJob: names the argument, or the parameter of the function. Nothing is stored.
        """
        check_arguments(name, self._registry.function_for(checked_name(name)), arguments)
        now, repetition = self._clock(), checked_repetition(every, cron)
        due = checked_due(at, delay, now)
        if cron is not None and at is None and delay is None:
            due = next_due(repetition, now)
        document = {
            "_id": ObjectId(),
            "name": name,
            "arguments": checked_arguments(arguments),
            "state": JobState.PENDING,
            "priority": checked_priority(priority),
            "due": due,
            "waiting": due,
            "created": now,
            "updated": now,
            "attempts": 0,
            "key": job_key(name, arguments),
            "text": search_text(arguments),
            "history": [{"at": now, "state": JobState.PENDING}],
        }
        if repetition:
            document["repetition"] = {**repetition, "since": due}
        try:
            job.insert(document, unique=unique, singular=singular or bool(repetition))
        except DuplicateJob:
            return None
        return document

    def cancel(self, id: str) -> Document:
        """Cancel a pending or failed job. Raises `WrongState` for other states, `UnknownJob`."""
        canceled = job.cancel(self._own_id(id), now=self._clock())
        return canceled or self._refuse(id, "be canceled")

    def reschedule(
        self, id: str, *, at: datetime | None = None, delay: timedelta | None = None, priority: int | None = None
    ) -> Document:
        """Change the due time of a pending, failed or canceled job. With `priority` only, the due time is kept.

        Raises:
            WrongState: the job is executing or successful.
            DuplicateJob: the job is singular, and another with its name and arguments is live.
            InvalidJob, UnknownJob.
        """
        now = self._clock()
        if at is None and delay is None and priority is None:
            raise InvalidJob("at", "one of `at`, `delay` and `priority` must be given")
        checked = None if priority is None else checked_priority(priority)
        due = None if at is None and delay is None else checked_due(at, delay, now)
        return self._make_due(id, RESCHEDULABLE_STATES, due, checked, "be rescheduled")

    def retry(self, id: str) -> Document:
        """Make a job due now unless it is executing. Raises like `reschedule`."""
        return self._make_due(id, RETRYABLE_STATES, self._clock(), None, "be retried")

    def remove(self, id: str) -> Document:
        """Delete a job and return it. Raises `WrongState` for an executing job, `UnknownJob`."""
        return job.remove(self._own_id(id)) or self._refuse(id, "be removed")

    def get(self, id: str) -> Document:
        """Return a job, or the document of another program with this id. Raises `UnknownJob`."""
        found = job.get_any([ObjectId(id), str(id)] if is_id(id) else other_ids(id))
        if found is None:
            checked_id(id)
            raise UnknownJob(f"There is no job {id}")
        return found

    def find(self, name: str, *arguments: Any) -> list[Document]:
        """Return the jobs with this name and these arguments, newest first."""
        return job.find(job_key(name, checked_arguments(arguments)))

    def list(
        self, *, name: str | None = None, state: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Document]:
        """Return jobs, newest first, after the job whose id is `before`, as `id_text` writes it."""
        after = None if before is None else (read_job_id(before),)
        return self.page(name=name, state=state, after=after, limit=limit).jobs

    def page(
        self,
        *,
        name: str | None = None,
        state: str | None = None,
        search: str | None = None,
        sort: str = "created",
        is_descending: bool = True,
        after: Position | None = None,
        limit: int = 50,
    ) -> JobPage:
        """Return the jobs after `after`, the `end` of the previous page of the same query.

        Args:
            search: substring of the arguments, name or last error; ASCII letters match case-insensitively.
            sort: `created`, `due`, `updated`, `priority` or `attempts`; ties are ordered by id.

        Raises:
            InvalidJob: names the argument.
            NoPosition: `after` is not a position in this order.
        """
        query = JobQuery(
            name=None if name is None else checked_name(name),
            state=None if state is None else checked_state(state),
            text=search_pattern(search) if search else None,
            sort_by=sort_field(sort),
            is_descending=is_descending,
            after=after,
        )
        return job_pages.page(query, limit=limit)

    def clear(self, states: Iterable[str], name: str | None = None, *, limit: int | None = None) -> int:
        """Delete up to `limit` jobs in these states, of one name or of all names; return their number.

        Raises `InvalidJob`: executing jobs cannot be deleted.
        """
        wanted = [checked_state(state) for state in states]
        if JobState.EXECUTING in wanted:
            raise InvalidJob("states", "must not include executing: an executing job cannot be deleted")
        return job.clear(wanted, None if name is None else checked_name(name), limit=limit)

    def pause(self, names: Sequence[str]) -> None:
        """Pause queues in the whole system: no job of these names is started; an executing one finishes."""
        job_queue.pause([checked_name(name) for name in names], is_paused=True)

    def resume(self, names: Sequence[str]) -> None:
        """Resume paused queues."""
        job_queue.pause([checked_name(name) for name in names], is_paused=False)

    def status(self) -> dict[str, Any]:
        """Return `{queues, leader, other_documents}`.

        `queues` has every name that has jobs, a registered function or a pause, each as `{name, states, is_paused,
        running, oldest_due, next_due}`: the number of jobs by state, the executing job, and the due times of the oldest
        job that is due and of the next that is not. `leader` is the dispatching leader. `other_documents` is the number
        of documents that are not jobs, up to `foreign_job.MAX_FOREIGN_COUNT`.
        """
        now, counts, paused = self._clock(), job.counts(), job_queue.paused()
        running = {executing.name: _as_running(executing) for executing in job.executing()}
        queues = [
            {
                "name": name,
                "states": {state.value: counts.get(name, {}).get(state, 0) for state in JobState},
                "is_paused": name in paused,
                "running": running.get(name),
                "oldest_due": oldest if (oldest := job.next_due(name)) and oldest <= now else None,
                "next_due": job.next_due(name, after=now),
            }
            for name in sorted({*counts, *paused, *self._registry.names()})
        ]
        return {"queues": queues, "leader": job_queue.leader(), "other_documents": foreign_job.count()}

    def _make_due(
        self, id: str, states: Sequence[JobState], due: datetime | None, priority: int | None, action: str
    ) -> Document:
        changed = job.make_due(self._own_id(id), states, due=due, priority=priority, now=self._clock())
        return changed or self._refuse(id, action)

    def _refuse(self, id: str, action: str) -> Document:
        raise WrongState(f"The job {id} is {self.get(id)['state']} and cannot {action}")

    def _own_id(self, id: str) -> JobId:
        """Return the id of a job as it is stored. Raises like `get`, or `WrongState`: the document is not a job."""
        found = self.get(id)
        if not job.is_job(found):
            raise _foreign_document_error(id)
        stored: JobId = found["_id"]
        return stored


def _foreign_document_error(id: str) -> WrongState:
    return WrongState(f"The document {id} was stored by another program and is not a job")


def _as_running(executing: ExecutingJob) -> Document:
    worker = {} if executing.worker is None else {"worker": executing.worker}
    return {"id": executing.id, "claimed_until": executing.claimed_until, **worker}


jobs = Jobs(registry, clock=server_now)
"""The jobs of this installation. Connects on first use."""
