"""The pages for people. The modules in `static` fill them with live data from the API that programs use.

Guarantee: nothing is loaded from another host, no script is inline, and data is escaped.
"""

from __future__ import annotations

import re
from functools import partial
from os import PathLike, stat_result
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.types import Scope

from beat_schedule import systems
from models.audit import AUDITED_ACTIONS
from models.document_id import id_text, read_id, shown_id
from queue_manager.core.clock import milliseconds, minutes
from queue_manager.core.errors import PermanentError
from queue_manager.core.settings import settings
from queue_manager.operations.messages import queue_config
from queue_manager.system import SCHEDULE_PAGE, System
from queue_manager.web.auth.authorization import EACH, CurrentPrincipal, viewer, viewer_of
from queue_manager.web.html_pages import WORKERS_PAGE, render_page
from services import job_queues, message_queue
from services.failures import BROKER
from services.message_queue.explanation import REASON_NOTES

STATIC = Path(__file__).parents[1] / "static"


class Tab(NamedTuple):
    """A tab of the messages page."""

    slug: str
    queue: str
    title: str


TABS = (
    Tab("", "main", "Waiting"),
    Tab("processing", "processing", "Processing"),
    Tab("failed", "dead", "Failed"),
    Tab("acknowledged", "acknowledged", "Acknowledged"),
    Tab("archived", "archived", "Archived"),
)

of_each, of_messages, of_jobs, of_all = (APIRouter(include_in_schema=False) for _ in range(4))


_NOT_SENT = re.compile(r"/\*.*?\*/|(?:^| ) *//[^\n]*|^ +", re.DOTALL | re.MULTILINE)
"""Comments and indentation. Scripts and styles have no such text in a string."""


class Static(StaticFiles):
    """Static files that browsers revalidate before each use: after an upgrade, a new page never runs an old script.

    Scripts and styles are sent without comments and indentation, a sixth of what would be sent. The lines keep their
    numbers.
    """

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["cache-control"] = "no-cache"
        if isinstance(response, FileResponse) and Path(full_path).suffix in (".css", ".js"):
            return _shortened(Path(full_path), response)
        return response


def _shortened(path: Path, response: FileResponse) -> Response:
    code = _NOT_SENT.sub(lambda found: "\n" * found[0].count("\n"), path.read_text(encoding="utf-8"))
    kept = {name: response.headers[name] for name in ("cache-control", "content-type", "etag", "last-modified")}
    return Response(code, headers=kept)


def install(api: FastAPI) -> None:
    for system in systems():
        if system.items is not None:
            of_system = APIRouter(include_in_schema=False)
            of_system.add_api_route(system.page, partial(_system_page, system))
            of_system.add_api_route(f"{system.page}/{{id:path}}", partial(_item_page, system))
            api.include_router(of_system, dependencies=[viewer_of(system.name)])
    api.include_router(of_each, dependencies=[viewer_of(EACH)])
    api.include_router(of_messages, dependencies=[viewer_of(message_queue.system.name)])
    api.include_router(of_jobs, dependencies=[viewer_of(job_queues.system.name)])
    api.include_router(of_all, dependencies=[viewer])
    api.mount("/static", GZipMiddleware(Static(directory=STATIC)))


@of_each.get("/")
async def overview(request: Request, principal: CurrentPrincipal) -> HTMLResponse:
    return render_page("overview.html", request, principal)


async def _system_page(system: System, request: Request, principal: CurrentPrincipal) -> HTMLResponse:
    return render_page("system.html", request, principal, system=system, has_hooks=settings().qm_hooks)


async def _item_page(system: System, request: Request, principal: CurrentPrincipal, id: str) -> HTMLResponse:
    product = (system.item_url(settings()) or "").replace("{id}", quote(_id_in_product(id), safe=""))
    return render_page("explanation.html", request, principal, system=system, id=id, product=product)


def _id_in_product(id: str) -> str:
    """Return an id as the product knows it: a string without quotation marks, a UUID with hyphens."""
    try:
        found = read_id(id, field="id")
    except PermanentError:
        return id
    return shown_id(found) if id_text(found) == id else id  # a scan may use the text `1e5` as an id; it is not a number


@of_each.get("/search")
async def search(request: Request, principal: CurrentPrincipal, id: str = "") -> HTMLResponse:
    return render_page("search.html", request, principal, id=id.strip())


@of_messages.get("/messages")
@of_messages.get("/messages/{slug:path}")
async def messages(request: Request, principal: CurrentPrincipal, slug: str = "") -> HTMLResponse:
    """The list of a tab, or the message of an id that is not the name of one."""
    tab = next((tab for tab in TABS if tab.slug == slug), None)
    if tab is None:
        return await _item_page(message_queue.system, request, principal, slug)
    return render_page(
        "messages.html",
        request,
        principal,
        tabs=TABS,
        tab=tab,
        is_on=settings().qm_message_queue,
        config=queue_config().model_dump(),
        reasons=REASON_NOTES,
    )


@of_jobs.get("/jobs")
async def jobs(request: Request, principal: CurrentPrincipal) -> HTMLResponse:
    silence = max(job_queues.system.late_after(settings()), minutes(1))
    is_on = settings().runs_jobs
    return render_page("jobs.html", request, principal, is_on=is_on, max_silence_ms=milliseconds(silence))


of_jobs.add_api_route("/jobs/{id:path}", partial(_item_page, job_queues.system))


@of_each.get(WORKERS_PAGE)
async def workers(request: Request, principal: CurrentPrincipal) -> HTMLResponse:
    pages = {system.queue: system.page for system in systems() if system.queue and principal.has_system(system.name)}
    return render_page("workers.html", request, principal, pages=pages)


@of_all.get("/failures")
async def failures(request: Request, principal: CurrentPrincipal) -> HTMLResponse:
    listed = [(system.name, system.title) for system in systems() if system.page != SCHEDULE_PAGE]
    shown = [*listed, (BROKER, "Broker")]
    return render_page("failures.html", request, principal, systems=shown, reasons=REASON_NOTES)


@of_all.get("/audit")
async def audit(request: Request, principal: CurrentPrincipal) -> HTMLResponse:
    return render_page(
        "audit.html",
        request,
        principal,
        days=f"{settings().qm_audit_days:g}",
        actions=[(action, action) for action in AUDITED_ACTIONS],
        systems=[(system.name, system.title) for system in systems()],
    )


@of_all.get("/schedule")
async def schedule(request: Request, principal: CurrentPrincipal) -> HTMLResponse:
    return render_page("schedule.html", request, principal, has_hooks=settings().qm_hooks)
