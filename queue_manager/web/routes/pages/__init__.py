"""The pages for people: shells filled in here, kept live by the modules in `static` through the same API as programs.

Guarantee: nothing comes from another host, no script is inline, and what others wrote is text, never markup.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from os import PathLike, stat_result
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.types import Scope

from beat_schedule import systems
from queue_manager.core.settings import settings
from queue_manager.system import System
from queue_manager.web.auth import Current, viewer
from queue_manager.web.http.errors import Refused
from queue_manager.web.rendering import rendered
from queue_manager.web.routes.pages.navigation import around

STATIC = Path(__file__).parents[2] / "static"


class Tab(NamedTuple):
    """The messages of one place."""

    slug: str
    place: str
    title: str


TABS = (
    Tab("", "main", "Waiting"),
    Tab("processing", "processing", "Processing"),
    Tab("failed", "dead", "Failed"),
    Tab("acknowledged", "acknowledged", "Acknowledged"),
    Tab("archived", "archived", "Archived"),
)

router = APIRouter(include_in_schema=False)


class Static(StaticFiles):
    """Static files that browsers revalidate before each use: after an upgrade, a new page never runs an old script."""

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["cache-control"] = "no-cache"
        return response


def install(api: FastAPI) -> None:
    of_systems = APIRouter(include_in_schema=False)
    for system in systems():
        if system.items is not None:
            of_systems.add_api_route(system.page, _page_of(system))
    for part in (router, of_systems):
        api.include_router(part, dependencies=[viewer])
    api.mount("/static", GZipMiddleware(Static(directory=STATIC)))


@router.get("/")
async def overview(request: Request, who: Current) -> HTMLResponse:
    return rendered("overview.html", **around(request, who))


def _page_of(system: System) -> Callable[[Request, Current], Awaitable[HTMLResponse]]:
    async def page(request: Request, who: Current) -> HTMLResponse:
        needs_token = settings().socketio_token_secret is not None and not settings().has_credentials
        return rendered("system.html", **around(request, who), system=system, needs_token=needs_token)

    return page


@router.get("/messages")
@router.get("/messages/{slug}")
async def messages(request: Request, who: Current, slug: str = "") -> HTMLResponse:
    tab = next((tab for tab in TABS if tab.slug == slug), None)
    if tab is None:
        raise Refused(HTTPStatus.NOT_FOUND, "not found", f"There are no messages called {slug!r}")
    chosen = settings()
    return rendered(
        "messages.html",
        **around(request, who),
        tabs=TABS,
        tab=tab,
        is_on=chosen.qm_message_queue,
        levels=chosen.max_priority_levels,
    )


@router.get("/jobs")
async def jobs(request: Request, who: Current) -> HTMLResponse:
    return rendered("jobs.html", **around(request, who), is_on=settings().runs_jobs)


@router.get("/schedule")
async def schedule(request: Request, who: Current) -> HTMLResponse:
    return rendered("schedule.html", **around(request, who), has_hooks=settings().qm_hooks)
