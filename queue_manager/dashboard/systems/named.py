"""The systems by their names, as people and paths know them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Path

from beat_schedule import SCHEDULE
from queue_manager.core.schedule import Scan
from queue_manager.core.settings import settings
from queue_manager.dashboard.errors import Refused
from services.due_work import DueWork
from services.eligible_agencies import eligible_agencies
from services.hung_sites import hung_sites
from services.items import Listed
from services.job_queues import INITIATOR as JOBS_THAT_RAN
from services.support_snooze import support_snooze
from tasks.base import ItemTask
from tasks.review_requests import create_review_request
from tasks.stale_thumbnails import reset_stale_thumbnail
from tasks.support_snooze import unsnooze_room


@dataclass(frozen=True, kw_only=True)
class Items:
    """Where the items of a system come from, and the task that acts on one."""

    listed: Callable[[], Listed]
    task: ItemTask

    def work(self) -> DueWork:
        return self.task.work()


@dataclass(frozen=True, kw_only=True)
class System:
    scan: Scan
    title: str
    page: str
    counted_as: str | None
    """The name under which its items are counted as they end; `None`: nobody counts them."""
    items: Items | None = None

    @property
    def name(self) -> str:
        return self.scan.name

    @property
    def is_on(self) -> bool:
        return self.scan.flag(settings())

    def page_of(self, state: str) -> str:
        """Return the page that lists its items in a state."""
        if self.page == "/messages":
            return "/messages/failed" if state == "dead" else f"/messages/{state}"
        return f"{self.page}?state={state}"

    @property
    def trigger(self) -> str:
        return f"/api/trigger/{self.scan.trigger}"


_ROOMS = Items(listed=support_snooze, task=unsnooze_room)
_AGENCIES = Items(listed=eligible_agencies, task=create_review_request)
_SITES = Items(listed=hung_sites, task=reset_stale_thumbnail)
_PAGES: dict[str, tuple[str, str, str | None, Items | None]] = {
    "support-snooze": ("Rooms", "/rooms", "support-snooze", _ROOMS),
    "review-requests": ("Reviews", "/reviews", "review-request-pulse", _AGENCIES),
    "stale-thumbnails": ("Thumbnails", "/thumbnails", "stale-thumbnails", _SITES),
    # Clients of other kinds acknowledge on the server itself, where nobody counts by the minute.
    "overdue-messages": ("Messages", "/messages", None, None),
    "job-queues": ("Jobs", "/jobs", JOBS_THAT_RAN, None),
}


def system_of(scan: Scan) -> System:
    """Return the system of a scan. One without a page of its own is shown by its name, and leads to the schedule."""
    plain = (scan.name.replace("-", " ").capitalize(), "/schedule", scan.queue, None)
    title, page, counted_as, items = _PAGES.get(scan.name, plain)
    return System(scan=scan, title=title, page=page, counted_as=counted_as, items=items)


SYSTEMS = {scan.name: system_of(scan) for scan in SCHEDULE}


def _named(name: Annotated[str, Path()]) -> System:
    return _found(name, list(SYSTEMS))


def _with_items(name: Annotated[str, Path()]) -> tuple[System, Items]:
    system = _found(name, [known for known, system in SYSTEMS.items() if system.items is not None])
    assert system.items is not None
    return system, system.items


def _found(name: str, known: list[str]) -> System:
    if name not in known:
        said = f"There is no system {name!r} here; the systems are: {', '.join(known)}"
        raise Refused(HTTPStatus.NOT_FOUND, "not found", said, field="name")
    return SYSTEMS[name]


Named = Annotated[System, Depends(_named)]
"""The system that a path names."""
WithItems = Annotated[tuple[System, Items], Depends(_with_items)]
"""The system that a path names, which has items to be listed."""
