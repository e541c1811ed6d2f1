"""Jobs for those who need them done: run, cancel, reschedule, retry, pause, look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from models import job, job_leader, job_pages, job_queue
from models.database import Document
from models.job import AlreadyThere, State
from models.job_pages import Asked
from services.job_queues.checks import (
    checked_arguments,
    checked_due,
    checked_id,
    checked_name,
    checked_priority,
    checked_state,
    is_id,
    key_of,
    other_ids,
)
from services.job_queues.errors import InvalidJob, NotTheOnly, UnknownJob, WrongState
from services.job_queues.paging import JobPage, cursor_of, field_of, place_of
from services.job_queues.registry import Registry
from services.job_queues.searching import pattern_of, text_of

RETRIED = (State.PENDING, State.FAILURE, State.CANCELED, State.SUCCESS)
RESCHEDULED = (State.PENDING, State.FAILURE, State.CANCELED)


@dataclass(frozen=True, kw_only=True)
class QueueStatus:
    """One name: how many jobs are in each state, and what comes next."""

    name: str
    states: dict[str, int]
    is_paused: bool
    running: Document | None
    oldest_due: datetime | None
    """Since when the first job that may be started waits."""
    next_due: datetime | None
    """When the first of the others falls due."""


class Jobs:
    """The jobs in the database. `clock` is the server's."""

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
    ) -> Document | None:
        """Store a job and return it; `None` when it must be the only one and is not.

        Args:
            at, delay: when it is due; now unless one of them is given.
            priority: -100 to 100, higher first.
            unique: only if there is no job of the same name and arguments, in any state.
            singular: only if there is none that is pending, failed or executing.

        Raises:
            UnknownJob: no function is registered for the name.
            InvalidJob: names the argument; nothing was stored.
        """
        self._registry.work_of(checked_name(name))
        now = self._clock()
        document = {
            "_id": ObjectId(),
            "name": name,
            "arguments": checked_arguments(arguments),
            "state": State.PENDING,
            "priority": checked_priority(priority),
            "due": (due := checked_due(at, delay, now)),
            "waiting": due,
            "created": now,
            "updated": now,
            "attempts": 0,
            "key": key_of(name, arguments),
            "text": text_of(arguments),
            "history": [{"at": now, "state": State.PENDING}],
        }
        try:
            job.insert(document, unique=unique, singular=singular)
        except AlreadyThere:
            return None
        return document

    def cancel(self, id: str) -> Document:
        """Cancel a job that is pending or failed. Raises `WrongState`: it runs or is over; `UnknownJob`."""
        canceled = job.cancel(self._own_id(id), now=self._clock())
        return canceled or self._refuse(id, "be canceled")

    def reschedule(
        self, id: str, *, at: datetime | None = None, delay: timedelta | None = None, priority: int | None = None
    ) -> Document:
        """Make a job that waits, or was canceled, due at another time; a priority alone leaves the time as it is.

        Raises:
            WrongState: it runs or is done.
            NotTheOnly: it is singular, and another of its kind is live.
            InvalidJob, UnknownJob.
        """
        now = self._clock()
        if at is None and delay is None and priority is None:
            raise InvalidJob("at", "accepted is a new time, `at` or `delay`, or a new priority")
        checked = None if priority is None else checked_priority(priority)
        due = None if at is None and delay is None else checked_due(at, delay, now)
        return self._make_due(id, RESCHEDULED, due, checked, "be rescheduled")

    def retry(self, id: str) -> Document:
        """Make a job due now, unless it runs. Raises like `reschedule`."""
        return self._make_due(id, RETRIED, self._clock(), None, "be tried again")

    def get(self, id: str) -> Document:
        """Return a job, or what another program stored under this id. Raises `UnknownJob`."""
        found = job.get_any([ObjectId(id), str(id)]) if is_id(id) else self._foreign(id)
        if found is None:
            checked_id(id)
            raise UnknownJob(f"There is no job {id}")
        return found

    def find(self, name: str, *arguments: Any) -> list[Document]:
        """Return the jobs with this name and these arguments, newest first."""
        return job.find(key_of(name, checked_arguments(arguments)))

    def list(
        self, *, name: str | None = None, state: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[Document]:
        """Return jobs, newest first, from behind the job `before`."""
        return self.page(name=name, state=state, before=before, limit=limit).jobs

    def page(
        self,
        *,
        name: str | None = None,
        state: str | None = None,
        search: str | None = None,
        sort: str = "created",
        is_descending: bool = True,
        before: str | None = None,
        limit: int = 50,
    ) -> JobPage:
        """Return the jobs after `before`, the cursor of an earlier page that was asked for in the same words.

        Args:
            search: a text that they have in their arguments, name or last error; A to Z are the same as a to z.
            sort: `created`, `due`, `updated`, `priority` or `attempts`; what is equal comes in the order of the ids.

        Raises:
            InvalidJob: names the argument.
        """
        asked = Asked(
            name=None if name is None else checked_name(name),
            state=None if state is None else checked_state(state),
            text=pattern_of(search) if search else None,
            by=field_of(sort),
            is_descending=is_descending,
            after=None if before is None else place_of(before, sort),
        )
        found = job_pages.page(asked, limit=limit)
        cursor = None if found.end is None else cursor_of(found.end, sort)
        return JobPage(jobs=found.jobs, cursor=cursor, is_partial=found.is_partial)

    def clear(self, states: Iterable[str], name: str | None = None, *, most: int | None = None) -> int:
        """Delete jobs in these states, of one name or of all, no more than `most`; return how many.

        Raises `InvalidJob`: a job that runs cannot be deleted.
        """
        wanted = [checked_state(state) for state in states]
        if State.EXECUTING in wanted:
            raise InvalidJob("states", "a job that is executing cannot be deleted; accepted are the other states")
        return job.clear(wanted, None if name is None else checked_name(name), most=most)

    def pause(self, names: Sequence[str]) -> None:
        """Start no more jobs of these names, in the whole system; one that runs ends."""
        job_queue.pause([checked_name(name) for name in names], is_paused=True)

    def resume(self, names: Sequence[str]) -> None:
        """Let queues go on."""
        job_queue.pause([checked_name(name) for name in names], is_paused=False)

    def status(self) -> dict[str, Any]:
        """Return `{queues, leader, other_documents}`.

        The queues are every name that has jobs, a function or a pause; the leader: who hands out, since when; and how
        many documents are of another form, up to `job.COUNTED`.
        """
        now, counts, paused = self._clock(), job.counts(), job_queue.paused()
        running = {executing.name: executing for executing in job.executing()}
        queues = [
            QueueStatus(
                name=name,
                states={state.value: counts.get(name, {}).get(state, 0) for state in State},
                is_paused=name in paused,
                running=_shown(running.get(name)),
                oldest_due=oldest if (oldest := job.next_due(name)) and oldest <= now else None,
                next_due=job.next_due(name, after=now),
            )
            for name in sorted({*counts, *paused, *self._registry.names()})
        ]
        return {
            "queues": [asdict(queue) for queue in queues],
            "leader": job_leader.current(),
            "other_documents": job.count_foreign(),
        }

    def _make_due(
        self, id: str, states: Sequence[State], due: datetime | None, priority: int | None, what: str
    ) -> Document:
        try:
            changed = job.make_due(self._own_id(id), states, due=due, priority=priority, now=self._clock())
        except AlreadyThere:
            raise NotTheOnly(f"The job {id} is singular, and another with its name and arguments is live") from None
        return changed or self._refuse(id, what)

    def _refuse(self, id: str, what: str) -> Document:
        found = self.get(id)
        if not job.is_ours(found):
            raise _is_foreign(id)
        raise WrongState(f"The job {id} is {found['state']} and cannot {what}")

    def _own_id(self, id: str) -> ObjectId:
        """Return the id of a job. Raises `InvalidJob`; `WrongState`: it is that of a document of another form."""
        if not is_id(id) and self._foreign(id) is not None:
            raise _is_foreign(id)
        return checked_id(id)

    def _foreign(self, id: Any) -> Document | None:
        """Return the document that has this id of another type, as a text or in extended JSON."""
        return job.get_any(other_ids(id))


def _is_foreign(id: str) -> WrongState:
    return WrongState(f"The document {id} was stored by another program, in another form, and is left alone")


def _shown(executing: job.Executing | None) -> Document | None:
    if executing is None:
        return None
    shown: Document = {"id": executing.id, "claimed_until": executing.claimed_until}
    return shown if executing.worker is None else {**shown, "worker": executing.worker}
