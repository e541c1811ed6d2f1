"""One line every 5 s on what happened to the items: `3 rooms opened (lag 0.02 s), 6 messages handled`.

Counted in MongoDB and in the message queue; a period in which nothing happened has no line. Run as
`python -m dev.summary` with MONGO_DB_URL and REDIS_URL set. While a server is unavailable it says so.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pymongo import DESCENDING, timeout
from pymongo.errors import PyMongoError

from models import job, pulse, site, support_room
from models.database import server_now
from models.job import JobState
from queue_manager.core.settings import Settings, settings
from queue_manager.core.wording import many
from services.message_queue import QueueCounts, QueueUnavailable, queue_admin

PERIOD = 5.0  # seconds
TIME_LIMIT = 3.0  # seconds for the counts of a system: on a large collection of somebody's own they must not weigh

Describe = Callable[[datetime, datetime], str]
"""Says what happened from one moment on, at another; an empty text if nothing did."""


def describe_rooms(since: datetime, now: datetime) -> str:
    """Count the rooms opened, and those that should be."""
    rooms = support_room.rooms()
    opened = {"unsnoozed_at": {"$gt": since}}
    due = rooms.count_documents({"snooze_time.time": {"$lte": now}})
    said = [_count(rooms.count_documents(opened), "room", "opened"), _count(due, "room", "due")]
    last = rooms.find_one({**opened, "demo_due_at": {"$type": "date"}}, sort=[("unsnoozed_at", DESCENDING)])
    if last is not None:
        said[0] += f" (lag {(last['unsnoozed_at'] - last['demo_due_at']).total_seconds():.2f} s)"
    return _joined(said)


def describe_reviews(since: datetime, now: datetime) -> str:
    """Count the review requests created."""
    return _count(pulse.count_created(since), "review request", "created")


def describe_thumbnails(since: datetime, now: datetime) -> str:
    """Count the hanging builds that were reset."""
    return _count(site.count_resets(since), "thumbnail", "reset")


def describe_jobs(since: datetime, now: datetime) -> str:
    """Count the jobs that ended, and those whose attempt failed."""

    def ended(state: JobState) -> int:
        query: dict[str, Any] = {"state": state, "updated": {"$gt": since}}
        return job.jobs().count_documents(query, hint="jobs_in_a_state_by_updated")

    return _joined([_count(ended(JobState.SUCCESS), "job", "done"), _count(ended(JobState.FAILURE), "job", "failed")])


class Messages:
    """Says what happened in the message queue since it was asked last."""

    def __init__(self) -> None:
        self._last: QueueCounts | None = None

    def describe(self, counts: QueueCounts) -> str:
        last, self._last = self._last or counts, counts
        return _joined(
            [
                _count(counts.total_acknowledged - last.total_acknowledged, "message", "handled"),
                _count(counts.total_dead_lettered - last.total_dead_lettered, "message", "dead-lettered"),
            ]
        )

    def line(self) -> str:
        """Count now and say it, or that the queue's server is unavailable."""
        try:
            return self.describe(queue_admin().counts())
        except QueueUnavailable as error:
            return str(error)


def _count(number: int, noun: str, participle: str) -> str:
    return f"{many(number, noun)} {participle}" if number > 0 else ""


def _joined(parts: list[str]) -> str:
    return ", ".join(filter(None, parts))


def systems(chosen: Settings) -> list[Describe]:
    """Return what describes each system that is switched on."""
    known = (
        (chosen.qm_conversations, describe_rooms),
        (chosen.qm_projects, describe_reviews),
        (chosen.qm_sites_fix_stale_thumbnails, describe_thumbnails),
        (chosen.runs_jobs, describe_jobs),
    )
    return [describe for is_on, describe in known if is_on]


def describe_all(described: list[Describe], since: datetime, now: datetime) -> str:
    """Say in one line what happened in these systems."""
    parts = []
    for describe in described:
        with timeout(TIME_LIMIT):
            parts.append(describe(since, now))
    return _joined(parts)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    messages = Messages() if settings().qm_message_queue else None
    described = systems(settings())
    since: datetime | None = None
    while True:
        line = []
        try:
            now = server_now()
            line.append(describe_all(described, since or now, now))
            since = now
        except PyMongoError as error:
            line.append(f"MongoDB did not answer: {type(error).__name__}")
        if messages is not None:
            line.append(messages.line())
        if said := _joined(line):
            print(said)
        time.sleep(PERIOD)


if __name__ == "__main__":
    main()
