"""The pages for people: shells filled in here, kept live by the modules in `static` through the same API as programs.

Guarantee: nothing comes from another host, no script is inline, and what others wrote is text, never markup.
"""

from __future__ import annotations

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

from queue_manager.core.settings import settings
from queue_manager.dashboard.access import Current, viewer
from queue_manager.dashboard.errors import Refused
from queue_manager.dashboard.pages.navigation import around
from queue_manager.dashboard.rendering import rendered

STATIC = Path(__file__).parent / "static"


class System(NamedTuple):
    """A page that shows the items of one scan."""

    name: str
    title: str
    lead: str
    items: str


class Tab(NamedTuple):
    """The messages of one place."""

    slug: str
    place: str
    title: str


SYSTEMS = {
    "rooms": System("support-snooze", "Rooms", "Snoozed support rooms, opened again when their time comes.", "rooms"),
    "reviews": System("review-requests", "Reviews", "Agencies that are asked for a review after a month.", "agencies"),
    "thumbnails": System("stale-thumbnails", "Thumbnails", "Thumbnail builds that hang, reset hourly.", "sites"),
}
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
    api.include_router(router, dependencies=[viewer])
    api.mount("/static", GZipMiddleware(Static(directory=STATIC)))


@router.get("/")
async def overview(request: Request, who: Current) -> HTMLResponse:
    return rendered("overview.html", **around(request, who))


@router.get("/rooms")
@router.get("/reviews")
@router.get("/thumbnails")
async def system(request: Request, who: Current) -> HTMLResponse:
    shown = SYSTEMS[request.url.path.strip("/")]
    needs_token = settings().socketio_token_secret is not None and not settings().has_credentials
    return rendered("system.html", **around(request, who), system=shown, needs_token=needs_token)


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
