"""One line for each system every 10 s on what happened to its items, counted in MongoDB and in the message queue.

Run as `python -m dev.summary` with MONGO_DB_URL and REDIS_URL set. While a server is away it says
so.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime

from pymongo import DESCENDING, timeout
from pymongo.errors import PyMongoError

from models import job, pulse, site, support_room
from models.database import server_now
from models.job import State
from queue_manager.core.clock import hours, minutes
from queue_manager.core.settings import Settings, settings
from services.message_queue import Counts, QueueUnavailable, queue_admin
from services.stale_thumbnails import threshold

PERIOD = 10.0  # seconds
TIME_LIMIT = 3.0  # seconds for the counts of a line: on a large collection of somebody's own they must not weigh


def describe_rooms(now: datetime) -> str:
    """Count the rooms at `now` and say it in one line."""
    rooms = support_room.rooms()
    snoozed = rooms.count_documents({"snooze_time.time": {"$gt": now}})
    due = rooms.count_documents({"snooze_time.time": {"$lte": now}})
    woken = rooms.count_documents({"unsnoozed_at": {"$type": "date"}})
    lately = rooms.count_documents({"unsnoozed_at": {"$gt": now - minutes(1)}})
    line = f"rooms: {snoozed} snoozed, {due} due, {woken} woken ({lately} in the last minute)"
    last = rooms.find_one(
        {"unsnoozed_at": {"$type": "date"}, "demo_due_at": {"$type": "date"}},
        sort=[("unsnoozed_at", DESCENDING)],
    )
    if last is None:
        return line
    lag = (last["unsnoozed_at"] - last["demo_due_at"]).total_seconds()
    return f"{line}, lag of the last {lag:.2f} s"


def describe_reviews(now: datetime) -> str:
    """Count the review requests at `now` and say it in one line."""
    day, lately = (pulse.count_created(now - span) for span in (hours(24), minutes(1)))
    return f"reviews: {pulse.count_open()} open, {day} made in the last day ({lately} in the last minute)"


def describe_thumbnails(now: datetime) -> str:
    """Count the builds that hang at `now` and those taken back, and say it in one line."""
    stuck = sum(sites.stuck(now - threshold()) for sites in site.ALL.values())
    day, lately = (site.resets_since(now - span) for span in (hours(24), minutes(1)))
    return f"thumbnails: {stuck} stuck, {day} reset in the last day ({lately} in the last minute)"


def describe_jobs(now: datetime) -> str:
    """Count the jobs and say it in one line."""
    counts = Counter[str]()
    for states in job.counts().values():
        counts.update(states)
    running = ", ".join(executing.name for executing in job.executing())
    said = [f"{counts[state]} {state}" for state in State if state is not State.EXECUTING]
    return f"jobs: {', '.join(said)}, executing {running or 'none'}"


class Messages:
    """Says how the message queue stands; what was acknowledged lately is reckoned from what it said before."""

    def __init__(self) -> None:
        self._said: deque[Counts] = deque()

    def describe(self, counts: Counts) -> str:
        """Say the counts in one line. The last minute is that before `counts`, as far as it was looked at."""
        while self._said and self._said[0].now < counts.now - 60.5:  # half a second for ticks that come late
            self._said.popleft()
        self._said.append(counts)
        lately = max(counts.total_acknowledged - self._said[0].total_acknowledged, 0)
        return (
            f"messages: {counts.main} waiting, {counts.processing} held, {counts.overdue} overdue, {counts.dead} dead, "
            f"{counts.total_acknowledged} acknowledged ({lately} in the last minute)"
        )

    def line(self) -> str:
        """Count now and say it, or that the queue's server is away."""
        try:
            return self.describe(queue_admin().counts())
        except QueueUnavailable as error:
            return f"messages: {error}"


def lines(chosen: Settings) -> list[Callable[[datetime], str]]:
    """Return what describes each system that is switched on."""
    systems = (
        (chosen.qm_conversations, describe_rooms),
        (chosen.qm_projects, describe_reviews),
        (chosen.qm_sites_fix_stale_thumbnails, describe_thumbnails),
        (chosen.runs_jobs, describe_jobs),
    )
    return [describe for is_on, describe in systems if is_on]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    messages = Messages() if settings().qm_message_queue else None
    while True:
        time.sleep(PERIOD)
        for describe in lines(settings()):
            try:
                with timeout(TIME_LIMIT):
                    print(describe(server_now()))
            except PyMongoError as error:
                print(f"MongoDB did not answer: {type(error).__name__}")
        if messages is not None:
            print(messages.line())


if __name__ == "__main__":
    main()
