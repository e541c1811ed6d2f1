"""The HTTP API of jobs: list, show and count them; run, cancel, retry, reschedule and delete them; pause queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator

from models.database import server_now
from models.job import JobState
from queue_manager.core.clock import to_iso
from queue_manager.core.log import get_logger
from queue_manager.web.http import cursors
from queue_manager.web.http.cursors import Cursor
from queue_manager.web.http.errors import ApiError, errors, invalid
from queue_manager.web.http.requests import EmptyIsNone, JsonBody, NoMembers
from queue_manager.web.routes.jobs.schemas import (
    MAX_JOB_BODY,
    AnyJob,
    DeletedJobs,
    JobAnswer,
    JobName,
    Jobs,
    JobsStatus,
    JobsToDelete,
    Names,
    NewJob,
    Paused,
    Rescheduling,
    Resumed,
    SortField,
)
from queue_manager.web.server_calls import mongodb
from services.job_queues import DuplicateJob, InvalidJob, UnknownJob, WrongState, as_json, jobs
from services.job_queues.fields import MAX_JOB_SEARCH_LENGTH, STATE_ALIASES

CLEAR_BATCH_SIZE = 5_000  # jobs that are deleted in one statement, which takes less than the server's timeout
JOB_ERRORS: dict[type[Exception], tuple[HTTPStatus, str]] = {
    InvalidJob: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
    UnknownJob: (HTTPStatus.NOT_FOUND, "not found"),
    WrongState: (HTTPStatus.CONFLICT, "wrong state"),
    DuplicateJob: (HTTPStatus.CONFLICT, "blocked"),
}

NoBody = Annotated[NoMembers, Depends(JsonBody(NoMembers, max_bytes=MAX_JOB_BODY, is_required=False))]
QueueNames = Annotated[Names, Depends(JsonBody(Names, max_bytes=MAX_JOB_BODY))]

log = get_logger("QM/jobs")
queries = APIRouter(responses=errors(503))
commands = APIRouter(responses=errors(503))


# Queries


def _canonical_state(state: Any) -> Any:
    return STATE_ALIASES.get(state, state)


@queries.get("/jobs", response_model=Jobs)
def page(
    name: Annotated[JobName | None, EmptyIsNone] = None,
    state: Annotated[JobState | None, EmptyIsNone, BeforeValidator(_canonical_state)] = None,
    search: Annotated[str | None, Query(max_length=MAX_JOB_SEARCH_LENGTH)] = None,
    sort: Annotated[SortField | None, EmptyIsNone] = None,
    order: Annotated[Literal["asc", "desc"] | None, EmptyIsNone] = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> JSONResponse:
    """List jobs, by default the newest first.

    `search` looks into the arguments, the name and the last error. With `is_partial` a search stopped for its time
    before the page was full, and goes on at the cursor.
    """
    by, is_descending = sort or "created", order != "asc"
    of = f"jobs {by} {'desc' if is_descending else 'asc'}"
    after = cursors.decode(cursor, of=of)
    with mongodb(), cursors.checked():
        found = jobs.page(
            name=name,
            state=state,
            search=search or None,
            sort=by,
            is_descending=is_descending,
            after=after,
            limit=limit,
        )
        now = server_now()
    return JSONResponse(
        {
            "jobs": [as_json(job) for job in found.jobs],
            "cursor": None if found.end is None else cursors.encode(found.end, of=of),
            "is_partial": found.is_partial,
            "server_time": to_iso(now),
        }
    )


@queries.get("/jobs/status", response_model=JobsStatus)
def status() -> JSONResponse:
    """Return how many jobs of each name are in which state and what comes next, and which beat dispatches them."""
    with mongodb():
        return JSONResponse({**as_json(jobs.status()), "server_time": to_iso(server_now())})


@queries.get("/jobs/{id}", response_model=AnyJob, responses=errors(404))
def show(id: str) -> JSONResponse:
    """Return one job."""
    with mongodb():
        return JSONResponse({"job": as_json(jobs.get(id))})


# Commands


@commands.post("/jobs", status_code=HTTPStatus.CREATED, response_model=JobAnswer, responses=errors(404, 409))
def run(body: Annotated[NewJob, Depends(JsonBody(NewJob, max_bytes=MAX_JOB_BODY))]) -> JSONResponse:
    """Store a job. 404: no function is registered for its name; 409: it must be the only one and is not."""
    options = body.model_dump(include={"priority", "unique", "singular"})
    with mongodb():
        job = jobs.run(body.name, *body.arguments, **body.due(), **body.repetition(), **options)
    if job is None:
        message = f"There is already a job {body.name} with these arguments"
        raise ApiError(HTTPStatus.CONFLICT, "blocked", message)
    return JSONResponse({"job": as_json(job)}, status_code=HTTPStatus.CREATED)


@commands.post("/jobs/pause")
def pause(body: QueueNames) -> Paused:
    """Start no more jobs of these names; those that run go on."""
    return Paused(paused=_switch(body.names, jobs.pause, "paused"))


@commands.post("/jobs/resume")
def resume(body: QueueNames) -> Resumed:
    """Start jobs of these names again."""
    return Resumed(resumed=_switch(body.names, jobs.resume, "resumed"))


@commands.post("/jobs/clear")
def clear(body: Annotated[JobsToDelete, Depends(JsonBody(JobsToDelete, max_bytes=MAX_JOB_BODY))]) -> DeletedJobs:
    """Delete the jobs in some states, of one name or of all."""
    deleted = 0
    while True:
        with mongodb():
            batch = jobs.clear(body.states, body.name, limit=CLEAR_BATCH_SIZE)
        deleted += batch
        if batch < CLEAR_BATCH_SIZE:
            break
    log.info("Jobs deleted by hand", states=", ".join(body.states), name=body.name, jobs=deleted)
    return DeletedJobs(deleted=deleted)


@commands.post("/jobs/{id}/cancel", response_model=JobAnswer, responses=errors(404, 409))
def cancel(id: str, _: NoBody) -> JSONResponse:
    """Cancel a job that is pending or failed."""
    return _changed("canceled", jobs.cancel, id)


@commands.post("/jobs/{id}/retry", response_model=JobAnswer, responses=errors(404, 409))
def retry(id: str, _: NoBody) -> JSONResponse:
    """Make a job that is not executing due now."""
    return _changed("made due now", jobs.retry, id)


@commands.delete("/jobs/{id}", response_model=JobAnswer, responses=errors(404, 409))
def remove(id: str) -> JSONResponse:
    """Delete a job that is not executing, and return it."""
    return _changed("removed", jobs.remove, id)


@commands.post("/jobs/{id}/reschedule", response_model=JobAnswer, responses=errors(404, 409))
def reschedule(
    id: str, body: Annotated[Rescheduling, Depends(JsonBody(Rescheduling, max_bytes=MAX_JOB_BODY))]
) -> JSONResponse:
    """Change the time or the priority of a job that is pending, failed or canceled."""
    due = body.due()
    if not body.model_fields_set:
        raise invalid("at", "must be given unless delay_seconds or priority is")
    return _changed("rescheduled", jobs.reschedule, id, **due, priority=body.priority)


def _changed(what: str, change: Callable[..., dict[str, Any]], id: str, **options: Any) -> JSONResponse:
    with mongodb():
        job = change(id, **options)
    log.info(f"A job was {what} by hand", job=id, name=job["name"])
    return JSONResponse({"job": as_json(job)})


def _switch(names: list[str], change: Callable[[list[str]], None], what: str) -> list[str]:
    with mongodb(), _naming(name="names"):
        change(names)
    log.info(f"Queues were {what} by hand", names=", ".join(names))
    return names


# Errors


def install_error_responses(api: FastAPI) -> None:
    """Answer each error of jobs with its status."""
    for kind in JOB_ERRORS:
        api.add_exception_handler(kind, _answer)


@contextmanager
def _naming(**fields: str) -> Iterator[None]:
    """Let an `InvalidJob` name a field as the client knows it."""
    try:
        yield
    except InvalidJob as error:
        if error.field not in fields:
            raise
        problem = str(error).partition(": ")[2]
        raise InvalidJob(fields[error.field], problem) from None


async def _answer(_: Request, error: Exception) -> JSONResponse:
    status, word = JOB_ERRORS[type(error)]
    return ApiError(status, word, str(error), field=error.field if isinstance(error, InvalidJob) else None).response()
