"""Acting on jobs: run, cancel, retry, reschedule, pause, resume, clear."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from queue_manager.core.log import get_logger
from queue_manager.web.http.errors import Refused
from queue_manager.web.http.openapi import ANY, MOMENT, NUMBER, SWITCH, TEXT, many, thing
from queue_manager.web.http.openapi import body as described
from queue_manager.web.routes.jobs.request_parsing import (
    Body,
    delay_of,
    list_of,
    members,
    moment_of,
    names_of,
    naming,
    nothing,
    switch_of,
)
from queue_manager.web.server_calls import mongodb
from services.job_queues import as_json, jobs

AT_ONCE = 5_000  # jobs deleted in one question to the server, which takes less than its patience

log = get_logger("QM/jobs")
JOB = thing(
    "name",
    name=TEXT,
    arguments=many(ANY),
    at=MOMENT,
    delay_seconds=NUMBER,
    priority=ANY,
    unique=SWITCH,
    singular=SWITCH,
)
NAMES = thing("names", names=many(TEXT))
STATES = thing("states", states=many(TEXT), name=TEXT)
LATER = thing(at=MOMENT, delay_seconds=NUMBER, priority=ANY)
NOTHING = thing()

router = APIRouter()


@router.post("/jobs", openapi_extra=described(JOB))
def run(body: Body) -> JSONResponse:
    """Store a job: 201, or 409 when it must be the only one and is not."""
    given = members(body, "name", "arguments", "at", "delay_seconds", "priority", "unique", "singular")
    arguments = list_of(given, "arguments", default=[])
    options: dict[str, Any] = {
        "at": moment_of(given),
        "delay": delay_of(given),
        "priority": given.get("priority", 0),
        "unique": switch_of(given, "unique"),
        "singular": switch_of(given, "singular"),
    }
    with mongodb():
        job = jobs.run(given.get("name"), *arguments, **options)  # type: ignore[arg-type]  # it is looked at there
    if job is None:
        raise Refused(HTTPStatus.CONFLICT, "blocked", f"There is a job {given['name']} with these arguments already")
    return JSONResponse({"job": as_json(job)}, status_code=HTTPStatus.CREATED)


@router.post("/jobs/pause", openapi_extra=described(NAMES))
def pause(body: Body) -> JSONResponse:
    return _switch(body, jobs.pause, "paused")


@router.post("/jobs/resume", openapi_extra=described(NAMES))
def resume(body: Body) -> JSONResponse:
    return _switch(body, jobs.resume, "resumed")


@router.post("/jobs/clear", openapi_extra=described(STATES))
def clear(body: Body) -> JSONResponse:
    """Delete the jobs in some states, of one name or of all."""
    given = members(body, "states", "name")
    states = names_of(given, "states")
    deleted, some = 0, AT_ONCE
    while some == AT_ONCE:
        with mongodb(), naming(state="states"):
            some = jobs.clear(states, given.get("name"), limit=AT_ONCE)
        deleted += some
    log.info("Jobs deleted by hand", states=", ".join(states), name=given.get("name"), jobs=deleted)
    return JSONResponse({"deleted": deleted})


@router.post("/jobs/{id}/cancel", openapi_extra=described(NOTHING, is_needed=False))
def cancel(id: str, body: Body) -> JSONResponse:
    nothing(body)
    return _changed("canceled", jobs.cancel, id)


@router.post("/jobs/{id}/retry", openapi_extra=described(NOTHING, is_needed=False))
def retry(id: str, body: Body) -> JSONResponse:
    nothing(body)
    return _changed("made due now", jobs.retry, id)


@router.post("/jobs/{id}/reschedule", openapi_extra=described(LATER))
def reschedule(id: str, body: Body) -> JSONResponse:
    given = members(body, "at", "delay_seconds", "priority")
    times = {"at": moment_of(given), "delay": delay_of(given)}
    return _changed("rescheduled", jobs.reschedule, id, **times, priority=given.get("priority"))


def _changed(what: str, change: Callable[..., dict[str, Any]], id: str, **options: Any) -> JSONResponse:
    with mongodb():
        job = change(id, **options)
    log.info(f"A job was {what} by hand", job=id, name=job["name"])
    return JSONResponse({"job": as_json(job)})


def _switch(body: bytes, change: Callable[[list[str]], None], what: str) -> JSONResponse:
    names = names_of(members(body, "names"), "names")
    with mongodb(), naming(name="names"):
        change(names)
    log.info(f"Queues were {what} by hand", names=", ".join(names))
    return JSONResponse({what: names})
