"""Scrapes of `/metrics` and looks at the overview, over full collections."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial

from beat_schedule import SYSTEMS
from benchmarks import job_queues, snooze_scan
from benchmarks.dashboard import sizes
from benchmarks.harness import Bench, Figure, Result, Way, expect, percentile
from benchmarks.message_queue.queues import Queue, connect, messages
from benchmarks.web import Answer, Client, web
from models import database, job, schema, support_room
from queue_manager.core.clock import hours
from queue_manager.core.settings import settings

ROOMS, DUE = 100_000, 1_000
MESSAGES = 10_000
JOBS = 10_000
NAMES = [f"n{number}" for number in range(10)]
REQUESTS = 50  # of one way in one round


def run(bench: Bench) -> Result:
    rooms, due, waiting, jobs = (bench.sized(full) for full in (ROOMS, DUE, MESSAGES, JOBS))
    _fill(bench, rooms, due, waiting, jobs)
    with web() as process:
        client = Client(process.port)

        def ask(path: str) -> list[Answer]:
            return [client.get(path) for _ in range(REQUESTS)]

        def way(path: str, read: Callable[[bytes], tuple[int, int]]) -> Way:
            return Way(name=path, run=partial(ask, path), check=partial(_check, (due, waiting), read))

        return bench.compare(
            "dashboard, scrapes",
            f"{rooms:,} rooms, {due:,} of them due, {waiting:,} messages and {jobs:,} jobs; {REQUESTS} requests a "
            "round over HTTP, one after the other",
            [way("/metrics", _in_metrics), way("/api/overview", _in_overview)],
            figures=[
                Figure(heading="p95, ms", of=lambda run: percentile([one.seconds for one in run.result], 95) * 1e3),
                Figure(heading="p50, ms", of=lambda run: percentile([one.seconds for one in run.result], 50) * 1e3),
                Figure(heading="most, ms", of=lambda run: max(one.seconds for one in run.result) * 1e3),
                Figure(heading="bytes", of=lambda run: float(len(run.result[0].body))),
                Figure(heading="web ms each", of=lambda run: run.server_seconds / REQUESTS * 1e3),
            ],
            compared="times a scrape",
            tables=[sizes.table(client)],
            server_clock=process.clock,
            notes=[
                "All systems are on. A scrape reads everything anew, one server after the other; the overview is what",
                "all open pages are told, looked up at most once a second.",
            ],
        )


def _fill(bench: Bench, rooms: int, due: int, waiting: int, jobs: int) -> None:
    now = database.server_now()
    bench.fill(support_room.rooms(), snooze_scan.documents(rooms, due, now), rooms)
    schema.migrate(SYSTEMS)
    bench.fill(job.jobs(), job_queues.documents(NAMES, jobs // len(NAMES), now - hours(1)), jobs)
    queue = Queue(settings().queue_name, connect())
    queue.client.flushall()
    queue.fill(messages(waiting))


def _check(there: tuple[int, int], read: Callable[[bytes], tuple[int, int]], answers: list[Answer]) -> None:
    for answer in answers:
        expect("rooms that are due and messages that wait", read(answer.body), there)


def _in_metrics(body: bytes) -> tuple[int, int]:
    values = dict(re.findall(r"^(\S+) (\S+)$", body.decode(), re.MULTILINE))
    due = values['queue_manager_pending{system="support-snooze"}']
    return int(float(due)), int(float(values['queue_manager_pending{system="overdue-messages"}']))


def _in_overview(body: bytes) -> tuple[int, int]:
    due = {system["name"]: system["due"] for system in json.loads(body)["systems"]}
    return int(due["support-snooze"]), int(due["overdue-messages"])
