"""Changes of jobs: run, cancel, retry, reschedule, pause, resume, clear."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from queue_manager.core.log import get_logger
from queue_manager.web.http.errors import ApiError, errors, invalid
from queue_manager.web.http.requests import JsonBody, NoMembers
from queue_manager.web.routes.jobs.error_responses import naming
from queue_manager.web.routes.jobs.schemas import (
    MAX_BODY,
    DeletedJobs,
    JobAnswer,
    JobsToDelete,
    Names,
    NewJob,
    Paused,
    Rescheduling,
    Resumed,
)
from queue_manager.web.server_calls import mongodb
from services.job_queues import as_json, jobs

CLEAR_BATCH = 5_000  # jobs that are deleted in one statement, which takes less than the server's timeout

NoBody = Annotated[NoMembers, Depends(JsonBody(NoMembers, max_bytes=MAX_BODY, is_required=False))]
QueueNames = Annotated[Names, Depends(JsonBody(Names, max_bytes=MAX_BODY))]

log = get_logger("QM/jobs")
router = APIRouter(responses=errors(503))


@router.post("/jobs", status_code=HTTPStatus.CREATED, response_model=JobAnswer, responses=errors(404, 409))
def run(body: Annotated[NewJob, Depends(JsonBody(NewJob, max_bytes=MAX_BODY))]) -> JSONResponse:
    """Store a job. 404: no function is registered for its name; 409: it must be the only one and is not."""
    options = body.model_dump(include={"priority", "unique", "singular"})
    with mongodb():
        job = jobs.run(body.name, *body.arguments, **body.due(), **options)
    if job is None:
        message = f"There is already a job {body.name} with these arguments"
        raise ApiError(HTTPStatus.CONFLICT, "blocked", message)
    return JSONResponse({"job": as_json(job)}, status_code=HTTPStatus.CREATED)


@router.post("/jobs/pause")
def pause(body: QueueNames) -> Paused:
    """Start no more jobs of these names; those that run go on."""
    return Paused(paused=_switch(body.names, jobs.pause, "paused"))


@router.post("/jobs/resume")
def resume(body: QueueNames) -> Resumed:
    """Start jobs of these names again."""
    return Resumed(resumed=_switch(body.names, jobs.resume, "resumed"))


@router.post("/jobs/clear")
def clear(body: Annotated[JobsToDelete, Depends(JsonBody(JobsToDelete, max_bytes=MAX_BODY))]) -> DeletedJobs:
    """Delete the jobs in some states, of one name or of all."""
    deleted = 0
    while True:
        with mongodb():
            batch = jobs.clear(body.states, body.name, limit=CLEAR_BATCH)
        deleted += batch
        if batch < CLEAR_BATCH:
            break
    log.info("Jobs deleted by hand", states=", ".join(body.states), name=body.name, jobs=deleted)
    return DeletedJobs(deleted=deleted)


@router.post("/jobs/{id}/cancel", response_model=JobAnswer, responses=errors(404, 409))
def cancel(id: str, _: NoBody) -> JSONResponse:
    """Cancel a job that is pending or failed."""
    return _changed("canceled", jobs.cancel, id)


@router.post("/jobs/{id}/retry", response_model=JobAnswer, responses=errors(404, 409))
def retry(id: str, _: NoBody) -> JSONResponse:
    """Make a job that is not executing due now."""
    return _changed("made due now", jobs.retry, id)


@router.post("/jobs/{id}/reschedule", response_model=JobAnswer, responses=errors(404, 409))
def reschedule(
    id: str, body: Annotated[Rescheduling, Depends(JsonBody(Rescheduling, max_bytes=MAX_BODY))]
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
    with mongodb(), naming(name="names"):
        change(names)
    log.info(f"Queues were {what} by hand", names=", ".join(names))
    return names
