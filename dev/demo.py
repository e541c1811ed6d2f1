"""The demo's product: an application that runs next to Queue Manager, on the same MongoDB and on the same broker.

Each of its parts writes straight into MongoDB as a product would, `start` once and `go_on` every `PERIOD`. Every room,
subscription and site that it makes carries `demo: true`, and the type of every message and the name of every job begins
with `demo.`; it deletes none but its own, and no more of them are kept than fit on a screen or two. While a server is
away it tries again. Run as `python -m dev.demo` with MONGO_DB_URL and REDIS_URL set; with
`--no-messages` it keeps out of the message queue.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import PyMongoError

from dev import demo_agencies, demo_consumer, demo_jobs, demo_messages, demo_rooms, demo_sites
from dev.demo_consumer import Consumers
from queue_manager.broker.options import kombu_url, timeouts, tls_options, transport_options
from queue_manager.core.clock import seconds
from queue_manager.core.settings import Settings, settings
from services.job_queues import Jobs, jobs
from services.message_queue import QueueFull, QueueUnavailable, message_queue, queue_admin

Document = dict[str, Any]

TICK = 0.5  # seconds between two looks at whose turn it is
REVIEWS_EVERY, THUMBNAILS_EVERY = seconds(20), seconds(30)
AWAY = (PyMongoError, OperationalError, QueueUnavailable, QueueFull)
NO_MESSAGES = "--no-messages"


@dataclass(kw_only=True)
class Part:
    """Something that happens `every` so long; `name` says what, when it fails."""

    name: str
    every: timedelta
    go_on: Callable[[datetime], None]
    start: Callable[[datetime], None] | None = None
    """What happens instead the first time that it succeeds."""
    turn: float = 0.0
    """When it is its turn, by the monotonic clock."""

    def take_turn(self) -> None:
        """Do what is to be done if it is time for it. Says so when a server is unavailable."""
        if time.monotonic() < self.turn:
            return
        self.turn = time.monotonic() + self.every.total_seconds()
        try:
            (self.start or self.go_on)(datetime.now(UTC))
            self.start = None
        except AWAY as error:
            print(f"{self.name}: a server is unavailable, trying again: {type(error).__name__}")


def ask_for_scan(broker: Celery, task: str, *, every: timedelta) -> None:
    """Start a scan as any other application may: by its name. It is worth nothing once the next one is asked for."""
    broker.send_task(task, queue="scans", expires=every.total_seconds(), retry=False)
    print(f"scan requested: app.send_task({task!r}, queue='scans')")


def parts(database: Database[Document], broker: Celery, chosen: Settings) -> list[Part]:
    """Return what happens in the product, for the systems that are switched on."""
    found = []
    if chosen.qm_conversations:
        found.append(_of(demo_rooms, "rooms", database))
    if chosen.qm_projects:
        found.append(_of(demo_agencies, "agencies", database))
        found.append(_scans(broker, "tasks.review_requests.scan_eligible_agencies", every=REVIEWS_EVERY))
    if chosen.qm_sites_fix_stale_thumbnails:
        found.append(_of(demo_sites, "sites", database))
        found.append(_scans(broker, "tasks.stale_thumbnails.scan_stale_thumbnails", every=THUMBNAILS_EVERY))
    return found


def message_parts(consumers: Consumers) -> list[Part]:
    """Return what happens in the message queue: messages come, and consumers work on them, for as long as they live."""
    return [
        Part(
            name="messages",
            every=demo_messages.PERIOD,
            start=lambda _: demo_messages.start(message_queue(), queue_admin()),
            go_on=lambda _: demo_messages.go_on(message_queue(), queue_admin()),
        ),
        Part(name="consumers", every=demo_consumer.RESTART_EVERY, go_on=lambda _: consumers.keep_running()),
    ]


def job_part(jobs: Jobs) -> Part:
    """Return what happens in the job queues: jobs are ordered, and those that cannot succeed are canceled."""
    return Part(
        name="jobs",
        every=demo_jobs.PERIOD,
        start=lambda _: demo_jobs.start(jobs),
        go_on=lambda now: demo_jobs.go_on(jobs, now),
    )


def _of(module: ModuleType, name: str, database: Database[Document]) -> Part:
    return Part(
        name=name,
        every=module.PERIOD,
        start=lambda now: module.start(database, now),
        go_on=lambda now: module.go_on(database, now),
    )


def _scans(broker: Celery, task: str, *, every: timedelta) -> Part:
    return Part(name="scans", every=every, go_on=lambda _: ask_for_scan(broker, task, every=every))


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    chosen = settings()
    broker = Celery(broker=kombu_url(chosen), set_as_current=False)
    broker.conf.broker_use_ssl = tls_options(chosen.broker)
    broker.conf.broker_transport_options = {**transport_options(chosen), **timeouts(chosen.broker, 5)}
    with (
        MongoClient[Document](chosen.mongo_db_url, serverSelectionTimeoutMS=3_000) as client,
        Consumers() as consumers,
    ):
        running = parts(client.get_default_database(), broker, chosen)
        if chosen.qm_message_queue and NO_MESSAGES not in sys.argv:
            running += message_parts(consumers)
        if chosen.runs_jobs and demo_jobs.MODULE in chosen.jobs_imports:  # or no worker knows them
            running.append(job_part(jobs))
        while True:
            for part in running:
                part.take_turn()
            time.sleep(TICK)


if __name__ == "__main__":
    main()
