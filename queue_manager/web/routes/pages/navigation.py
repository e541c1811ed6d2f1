"""What is around every page: the other pages, and who looks."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastapi import Request

from beat_schedule import systems
from queue_manager.system import SCHEDULE_PAGE
from queue_manager.web.auth.principal import Who


class Link(NamedTuple):
    path: str
    title: str


def around(request: Request, who: Who | None) -> dict[str, Any]:
    """Return what `page.html` needs."""
    of_systems = [Link(system.page, system.title) for system in systems() if system.page != SCHEDULE_PAGE]
    pages = [Link("/", "Overview"), *of_systems, Link(SCHEDULE_PAGE, "Schedule")]
    path = request.url.path
    here = next((page.path for page in pages[1:] if f"{path}/".startswith(f"{page.path}/")), path)
    return {"nav": pages, "here": here, "who": who}
