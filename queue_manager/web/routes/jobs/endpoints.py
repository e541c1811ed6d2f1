"""The HTTP API of jobs: list, show and count them; run, cancel, retry, reschedule and delete them; pause queues."""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator

from models.database import Document, server_now
from models.job import INACTIVE_STATES, JobState, is_job
from queue_manager.core.clock import to_iso
from queue_manager.core.errors import InvalidField
from queue_manager.operations import switches
from queue_manager.operations.job_schemas import (
    MAX_JOB_BODY,
    ChangedJobs,
    DeletedJobs,
    JobAnswer,
    JobIds,
    JobLatencies,
    JobName,
    JobQueues,
    Jobs,
    JobsStatus,
    JobsToDelete,
    JobToRetry,
    Names,
    NamesToPause,
    NewJob,
    Paused,
    RemovedJob,
    Rescheduling,
    Resumed,
    SortField,
    job_as_json,
)
from queue_manager.operations.jobs import (
    JobAction,
    JobList,
    cached_counts,
    change_job,
    change_jobs,
    clear_jobs,
    jobs_status,
    read_latency,
    retry_unless_successful,
    run_job,
)
from queue_manager.operations.schemas import EmptyIsNone
from queue_manager.server_calls import mongodb
from queue_manager.web.auth.authorization import CurrentActor
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import Cursor, JsonBody, NoBody, time_check
from queue_manager.web.live.event_feed import EventStream
from queue_manager.web.live.search import MAX_SLICE_BYTES, SEARCH_EVENTS, SearchSlice, search
from services.audit import Actor
from services.job_queues import UnknownJob, as_json, jobs
from services.job_queues.fields import MAX_JOB_SEARCH_LENGTH, STATE_ALIASES

SelectedJobs = Annotated[JobIds, Depends(JsonBody(JobIds, max_bytes=MAX_JOB_BODY))]
QueueNames = Annotated[Names, Depends(JsonBody(Names, max_bytes=MAX_JOB_BODY))]

queries = APIRouter(responses=errors(503))
commands = APIRouter(responses=errors(503))


# Queries


def _canonical_state(state: Any) -> Any:
    return STATE_ALIASES.get(state, state)


def _list(
    name: Annotated[JobName | None, EmptyIsNone] = None,
    state: Annotated[JobState | None, EmptyIsNone, BeforeValidator(_canonical_state)] = None,
    search: Annotated[str | None, Query(max_length=MAX_JOB_SEARCH_LENGTH)] = None,
    sort: Annotated[SortField | None, EmptyIsNone] = None,
    order: Annotated[Literal["asc", "desc"] | None, EmptyIsNone] = None,
) -> JobList:
    return JobList(name=name, state=state, search=search, sort=sort or "created", is_descending=order != "asc")


SelectedList = Annotated[JobList, Depends(_list)]
Limit = Annotated[int, Query(ge=1, le=200)]


@queries.get("/jobs", response_model=Jobs)
def page(selected: SelectedList, cursor: Cursor = None, limit: Limit = 50) -> JSONResponse:
    """List jobs, by default the newest first.

    `search` looks into the arguments, the name and the last error. With `is_partial` a page is not full, because a
    search reached its time limit, or the jobs have about 16 MiB; the list continues at the cursor.
    """
    return JSONResponse(selected.answer(selected.page(cursor, limit)))


@queries.get(
    "/jobs/search",
    status_code=HTTPStatus.OK,
    response_class=EventStream,
    responses=SEARCH_EVENTS,
)
async def search_jobs(
    request: Request, selected: SelectedList, cursor: Cursor = None, limit: Limit = 50
) -> EventStream:
    """Search the list of jobs until `limit` of them match, or the list ends; send events meanwhile.

    `matches` is a list of jobs. `progress` is `{searched, total, found, cursor}`: how many of at most `total` jobs were
    searched, how many matched, and where the search can be continued. The last event is `end`, with the same members
    and the cursor null at the end of the list, or `error`, `{error, message}`. A search also ends after about 16 MiB of
    matches. Close the connection to cancel it.
    """

    def read(at: str | None, matches: int) -> SearchSlice:
        found = selected.page(at, matches, max_bytes=MAX_SLICE_BYTES)
        listed = [json.dumps(job_as_json(job), ensure_ascii=False, separators=(",", ":")) for job in found.jobs]
        return SearchSlice(matches=listed, searched=found.searched, cursor=found.cursor)

    def total() -> int:
        with mongodb():
            return jobs.count(name=selected.name, state=selected.state, read=cached_counts)

    return await search(request, read, cursor=cursor, limit=limit, total=total)


@queries.get("/jobs/status", response_model=JobsStatus)
def status() -> JSONResponse:
    """Return how many jobs of each name are in which state and what comes next, and which beat dispatches them.

    With more than 10,000 unfinished jobs, the numbers may be 20 times as old as it takes to count them: about 1 s per
    million.
    """
    with mongodb():
        return JSONResponse(jobs_status(cached_counts))


@queries.get("/jobs/queues", response_model=JobQueues)
def queues() -> JSONResponse:
    """Return the queue of each name, as `/jobs/status` but without counting jobs: fast, however many there are."""
    with mongodb():
        return JSONResponse({**as_json({"queues": jobs.queues()}), "server_time": to_iso(server_now())})


@queries.get("/jobs/latency")
def latency() -> JobLatencies:
    """Return how long the jobs of each name took in the last 24 hours."""
    return read_latency()


@queries.get("/jobs/{id}", response_model=JobAnswer, responses=errors(404))
def show(id: str) -> JSONResponse:
    """Return one job. 404 also for a document that is not a job, which the list leaves out."""
    with mongodb():
        found = jobs.get(id)
    if not is_job(found):
        raise UnknownJob(f"The document {id} was stored by another program and is not a job")
    return JSONResponse({"job": job_as_json(found)})


# Commands


@commands.post("/jobs", status_code=HTTPStatus.CREATED, response_model=JobAnswer, responses=errors(404, 409))
def run(
    body: Annotated[NewJob, Depends(JsonBody(NewJob, max_bytes=MAX_JOB_BODY))], actor: CurrentActor
) -> JSONResponse:
    """Store a job. 404: no function is registered for its name; 409: a unique or singular job already exists."""
    options = body.model_dump(include={"priority", "unique", "singular"})
    job = run_job(actor, body.name, body.arguments, **body.due(), **body.repetition(), **options)
    return JSONResponse({"job": job_as_json(job)}, status_code=HTTPStatus.CREATED)


@commands.post("/jobs/pause")
def pause(
    body: Annotated[NamesToPause, Depends(JsonBody(NamesToPause, max_bytes=MAX_JOB_BODY))], actor: CurrentActor
) -> Paused:
    """Start no more jobs of these names, which wait. Running jobs finish."""
    switches.pause_jobs(actor, body.names, body.reason)
    return Paused(paused=body.names)


@commands.post("/jobs/resume")
def resume(body: QueueNames, actor: CurrentActor) -> Resumed:
    """Start jobs of these names again."""
    switches.resume_jobs(actor, body.names)
    return Resumed(resumed=body.names)


@commands.post("/jobs/clear")
def clear(
    request: Request,
    body: Annotated[JobsToDelete, Depends(JsonBody(JobsToDelete, max_bytes=MAX_JOB_BODY))],
    actor: CurrentActor,
) -> DeletedJobs:
    """Delete the jobs in some states, of one name or of all, except those that code declares.

    It stops after 50 s, and `is_complete` is false: repeat it then. More than 100,000 jobs cannot be restored.
    """
    return clear_jobs(body, actor, is_over=time_check(request))


@commands.post("/jobs/cancel")
def cancel_many(body: SelectedJobs, actor: CurrentActor, request: Request) -> ChangedJobs:
    """Cancel up to 1,000 jobs, each as `/jobs/{id}/cancel`."""
    return change_jobs(actor, "cancel", jobs.cancel, body.ids, is_over=time_check(request))


@commands.post("/jobs/retry")
def retry_many(body: SelectedJobs, actor: CurrentActor, request: Request) -> ChangedJobs:
    """Make up to 1,000 jobs due now that are pending, failed or canceled.

    A job that succeeded, perhaps since the ids were read, is not run again.
    """
    return change_jobs(actor, "retry", retry_unless_successful, body.ids, is_over=time_check(request))


@commands.post("/jobs/delete")
def remove_many(body: SelectedJobs, actor: CurrentActor, request: Request) -> ChangedJobs:
    """Delete up to 1,000 jobs that are not executing."""
    return change_jobs(actor, "remove", jobs.remove, body.ids, is_over=time_check(request))


@commands.post("/jobs/{id}/cancel", response_model=JobAnswer, responses=errors(404, 409))
def cancel(id: str, _: NoBody, actor: CurrentActor) -> JSONResponse:
    """Cancel a job that is pending or failed, or ask one that is executing to stop.

    A job that is executing is `canceled` once its function has stopped, or its process was killed after a grace time.
    """
    return _changed(actor, "cancel", jobs.cancel, id)


@commands.post("/jobs/{id}/retry", response_model=JobAnswer, responses=errors(404, 409))
def retry(
    id: str, body: Annotated[JobToRetry, Depends(JsonBody(JobToRetry, is_required=False))], actor: CurrentActor
) -> JSONResponse:
    """Make a job that is not executing due now, also one that succeeded: it is run again."""
    return _changed(actor, "retry", jobs.retry, id, states=INACTIVE_STATES if body.state is None else [body.state])


@commands.delete("/jobs/{id}", response_model=RemovedJob, responses=errors(404, 409))
def remove(id: str, actor: CurrentActor) -> JSONResponse:
    """Delete a job that is not executing, and return it."""
    job, undo = change_job(actor, "remove", id, jobs.remove)
    return JSONResponse({"job": job_as_json(job), "undo": undo})


@commands.post("/jobs/{id}/reschedule", response_model=JobAnswer, responses=errors(404, 409))
def reschedule(
    id: str,
    body: Annotated[Rescheduling, Depends(JsonBody(Rescheduling, max_bytes=MAX_JOB_BODY))],
    actor: CurrentActor,
) -> JSONResponse:
    """Change the time or the priority of a job that is pending, failed or canceled."""
    due = body.due()
    if not body.model_fields_set:
        raise InvalidField("at", "must be given unless delay_seconds or priority is")
    return _changed(actor, "reschedule", jobs.reschedule, id, **due, priority=body.priority)


def _changed(actor: Actor, action: JobAction, change: Callable[..., Document], id: str, **options: Any) -> JSONResponse:
    job, _ = change_job(actor, action, id, change, **options)
    return JSONResponse({"job": job_as_json(job)})
