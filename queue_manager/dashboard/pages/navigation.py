"""What is around every page: the other pages, and who looks."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastapi import Request

from queue_manager.dashboard.access.who import Who


class Link(NamedTuple):
    path: str
    title: str


PAGES = (
    Link("/", "Overview"),
    Link("/rooms", "Rooms"),
    Link("/reviews", "Reviews"),
    Link("/thumbnails", "Thumbnails"),
    Link("/messages", "Messages"),
    Link("/jobs", "Jobs"),
    Link("/schedule", "Schedule"),
)


def around(request: Request, who: Who | None) -> dict[str, Any]:
    """Return what `page.html` asks for."""
    first = f"/{request.url.path.strip('/').partition('/')[0]}"
    return {"nav": PAGES, "here": first, "who": who}
