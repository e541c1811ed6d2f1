"""Lists, latency, changes and deletion of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Literal

from models import job_counts, job_pages
from models.archive import MAX_ARCHIVED
from models.database import Document, server_now
from models.document_id import shown_id
from models.job import LIVE_STATES, RESCHEDULABLE_STATES, JobState
from models.job_counts import CountsByName, ReadCounts
from models.job_pages import MAX_JOB_PAGE_BYTES, JobPage, JobQuery
from queue_manager.core.cached_answer import cached_count
from queue_manager.core.clock import to_iso
from queue_manager.core.errors import Contended
from queue_manager.operations import cursors
from queue_manager.operations.job_schemas import (
    ChangedJob,
    ChangedJobs,
    ChangeResult,
    DeletedJobs,
    JobLatencies,
    JobsToDelete,
    job_as_json,
)
from queue_manager.operations.schemas import latency_of
from queue_manager.server_calls import mongodb, redis_server
from services.audit import Actor, recorded
from services.job_queues import (
    DuplicateJob,
    InvalidJob,
    UnknownJob,
    WrongState,
    as_json,
    changeable,
    counts_by_name,
    jobs,
    system,
)
from services.job_queues.fields import checked_name, search_pattern, sort_field

JobAction = Literal["cancel", "retry", "remove", "reschedule"]
REFUSALS: Mapping[type[Exception], ChangeResult] = {
    InvalidJob: "NOT_FOUND",
    UnknownJob: "NOT_FOUND",
    WrongState: "WRONG_STATE",
    DuplicateJob: "BLOCKED",
    Contended: "CONTENDED",
}
"""The results of changes that a method of `jobs` refuses."""


@dataclass(frozen=True, kw_only=True)
class ListedJobs(JobPage):
    """A page of a list of jobs, and the cursor of the next page; `None` on the last one."""

    cursor: str | None


@dataclass(frozen=True, kw_only=True)
class JobList:
    """The list of jobs that a request selects."""

    name: str | None = None
    state: JobState | None = None
    search: str | None = None
    """A part of the arguments, the name or the last error. ASCII letters match in either case."""
    sort: str = "created"
    """`created`, or one of `JOB_SORT_FIELDS`."""
    is_descending: bool = True

    @property
    def id(self) -> str:
        """The name of the list in its cursors."""
        return f"jobs {self.sort} {'desc' if self.is_descending else 'asc'}"

    def page(self, cursor: str | None, limit: int, *, max_bytes: int = MAX_JOB_PAGE_BYTES) -> ListedJobs:
        """Return the page after a cursor; it ends with the job that reaches `max_bytes`, as BSON.

        Raises:
            InvalidField: names the field of the list, or the cursor.
            Unavailable: MongoDB does not answer.
        """
        with mongodb(), cursors.checked():
            query = JobQuery(
                name=None if self.name is None else checked_name(self.name),
                state=self.state,
                text=search_pattern(self.search) if self.search else None,
                sort_by=sort_field(self.sort),
                is_descending=self.is_descending,
                after=cursors.decode(cursor, of=self.id),
            )
            found = job_pages.page(query, limit=limit, max_bytes=max_bytes)
        return ListedJobs(**vars(found), cursor=cursors.encode(found.end, of=self.id))

    def answer(self, page: ListedJobs) -> dict[str, Any]:
        """Return a page as JSON, in the form of `Jobs`. Raises `Unavailable`."""
        with mongodb():
            now = server_now()
        return {
            "jobs": [job_as_json(job) for job in page.jobs],
            "cursor": page.cursor,
            "is_partial": page.is_partial,
            "server_time": to_iso(now),
        }


def jobs_status(read: ReadCounts = job_counts.by_name) -> dict[str, Any]:
    """Return the state of all job queues as JSON, in the form of `JobsStatus`. Raises the errors of the driver."""
    return {**as_json(jobs.status(read=read)), "server_time": to_iso(server_now())}


def cached_counts() -> CountsByName:
    """Return the number of jobs by name and state, for pages that read it at each change of a job."""
    return cached_count("jobs", _counts)


def _counts() -> tuple[CountsByName, int]:
    counts = job_counts.by_name()
    return counts, sum(states.get(one, 0) for states in counts.values() for one in LIVE_STATES)


def read_latency() -> JobLatencies:
    """Return how long the jobs of each name took in the last 24 hours. Raises `Unavailable`."""
    with mongodb(), redis_server() as client:
        names = {name: latency_of(system, counts) for name, counts in counts_by_name(client).items()}
        return JobLatencies(names=names, server_time=server_now())


def run_job(actor: Actor, name: str, arguments: Sequence[Any], **options: Any) -> Document:
    """Store a job and return it; `options` are those of `jobs.run`.

    Raises:
        UnknownJob, InvalidJob: see `jobs.run`.
        DuplicateJob: a unique or singular job already exists.
        Unavailable: MongoDB does not answer.
    """
    # Programs store many jobs, whose own history begins with that; people store few, and the audit says who.
    is_recorded = actor.via != "api"
    with recorded(actor, "run", system=system.name, detail=name) if is_recorded else nullcontext() as done:
        with mongodb():
            job = jobs.run(name, *arguments, **options)
        if job is None:
            raise DuplicateJob(f"There is already a job {name} with these arguments")
        if done is not None:
            done.succeeded([shown_id(job["_id"])])
    return job


def change_job(
    actor: Actor, action: JobAction, id: str, change: Callable[..., Document], **options: Any
) -> tuple[Document, str | None]:
    """Change a job by a method of `jobs`; return it, and the id by which that can be undone, if it can be.

    Raises:
        UnknownJob, WrongState, DuplicateJob: see the method.
        Unavailable: MongoDB does not answer, or another transaction holds the job.
    """
    with recorded(actor, action, system=system.name, ids=[id]) as done:
        done.count = 0
        if action == "remove":
            change = partial(change, keep=done.job_keeper())
        else:
            change = partial(
                change, on_change=lambda before, after: done.changed(changeable(before), changeable(after))
            )
        with mongodb():
            job = change(id, **options)
        done.ids, done.count = [shown_id(job["_id"])], 1
    return job, done.undo


def change_jobs(
    actor: Actor, action: JobAction, change: Callable[..., Document], ids: Sequence[str], *, is_over: Callable[[], bool]
) -> ChangedJobs:
    """Change jobs one by one by a method of `jobs` until `is_over`. Raises `Unavailable`: MongoDB does not answer."""
    wanted = list(dict.fromkeys(ids))
    results: list[ChangedJob] = []
    changed: list[str] = []
    with recorded(actor, action, system=system.name, ids=wanted) as done:
        done.count = 0
        if action == "remove":
            change = partial(change, keep=done.job_keeper())
        for id in takewhile(lambda _: not is_over(), wanted):
            result = result_of(change, id)
            results.append(ChangedJob(id=id, result=result))
            if result == "CHANGED":
                changed.append(id)
                done.succeeded(changed)  # before the next one, which may fail
        done.succeeded(changed)
        done.is_complete = len(results) == len(wanted)
    return ChangedJobs(
        changed=len(changed), of=len(wanted), is_complete=done.is_complete, results=results, undo=done.undo
    )


def retry_unless_successful(id: str, **options: Any) -> Document:
    """Make one of several jobs due now: those that succeeded since they were selected must not run again.

    Raises like `jobs.retry`.
    """
    return jobs.retry(id, states=RESCHEDULABLE_STATES, **options)


def result_of(change: Callable[[str], Document], id: str) -> ChangeResult:
    """Change a job by a method of `jobs`; return the result. Raises `Unavailable`: MongoDB does not answer."""
    with mongodb():
        try:
            change(id)
        except tuple(REFUSALS) as error:
            return REFUSALS[type(error)]
    return "CHANGED"


def clear_jobs(body: JobsToDelete, actor: Actor, *, is_over: Callable[[], bool]) -> DeletedJobs:
    """Delete in transactions until `is_over`; the rest is left for the next call. A preview is not recorded."""
    if body.preview:
        with mongodb():
            found = jobs.count_up_to(MAX_ARCHIVED + 1, body.states, body.name)
        return DeletedJobs(deleted=min(found, MAX_ARCHIVED), is_complete=found <= MAX_ARCHIVED, undo=None)
    count = 0
    selected = {"name": body.name or "all", "states": ", ".join(body.states)}
    with recorded(actor, "clear", system=system.name, filter=selected) as action:
        action.count = 0
        with mongodb():
            expected = jobs.count_up_to(MAX_ARCHIVED + 1, body.states, body.name)
        batches = jobs.clear_in_batches(body.states, body.name, keep=action.job_keeper(expected=expected))
        while (deleted := _next(batches)) is not None:
            action.count = count = count + deleted
            if is_over():
                action.is_complete = False
                break
    return DeletedJobs(deleted=count, is_complete=action.is_complete, undo=action.undo)


def _next(batches: Iterator[int]) -> int | None:
    """Delete the next batch in the time of one call; `None` after the last."""
    with mongodb():
        return next(batches, None)
