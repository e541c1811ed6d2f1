"""The overview and every list read only what they show: by `explain` of the statements that were sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

import pytest
from bson import ObjectId
from pymongo import monitoring

from benchmarks.explain import Recorder, explain
from models import database, scan_run, site, subscription, support_room
from models.database import collection, server_now
from queue_manager.core.clock import hours, seconds
from queue_manager.items import STATES, Listed
from queue_manager.operations.systems import read_overview
from services import stale_thumbnails
from services.due_documents.listing import DocumentList
from services.review_requests import review_requests
from tests.real_servers import Servers
from tests.rooms import make_work, scan

pytestmark = pytest.mark.scale

ROOMS, SITES, SUBSCRIPTIONS, RUNS = 200_000, 100_000, 50_000, 20_000
DUE, IN_FLIGHT, RESTING, HUNG = 300, 200, 100, 250
PAGE = 50
PAGE_READ = subscription.ACCOUNT_BATCH_SIZE


@pytest.fixture(scope="module")
def recorder(servers: Servers) -> Iterator[Recorder]:
    made = Recorder()
    monitoring.register(made)
    database.close()  # a client opened from now on is heard
    yield made
    database.close()


def rooms(now: datetime) -> Iterator[dict[str, Any]]:
    for number in range(ROOMS):
        if number < DUE + IN_FLIGHT + RESTING:
            yield {"status": "snoozed", "snooze_time": {"time": now - seconds(number + 1)}}
        elif number % 10 == 0:
            yield {"status": "snoozed", "snooze_time": {"time": now + hours(1) + seconds(number)}}
        else:
            yield {"status": "open", "snooze_queue_in_progress": False}


def sites(now: datetime) -> Iterator[dict[str, Any]]:
    for number in range(SITES):
        building = {"thumbnail_build_in_progress": True} if number < 2 * HUNG else {}
        started = now - hours(5) - seconds(number) if number < HUNG else now - seconds(1)
        yield {"status": "PUBLISHED", "thumbnail_process_started_at": started, **building}


def subscriptions() -> Iterator[dict[str, Any]]:
    for _ in range(SUBSCRIPTIONS):
        yield {
            "account": ObjectId(),
            "status": "active",
            "created_at": 1_700_000_000,
            "plan": {"metadata": {"product_type": "seo"}},
            "metadata": {"account_id": ObjectId()},
        }


def runs(now: datetime) -> Iterator[dict[str, Any]]:
    for number in range(RUNS):
        at = now - seconds(number * 4)
        yield {"scan": f"tasks.some.scan{number % 3}", "found": 0, "errors": int(number % 100 == 0), "at": at}


def fill(name: str, documents: Iterator[dict[str, Any]]) -> None:
    while some := list(islice(documents, 20_000)):
        collection(name).insert_many(some, ordered=False)


@pytest.mark.usefixtures("clean")
def test_queries_read_only_what_they_show(recorder: Recorder, figure: Callable[[str], None]) -> None:
    now = server_now()
    fill(support_room.ROOMS_COLLECTION, rooms(now))
    fill("agency_websites", sites(now))
    fill(subscription.subscriptions().name, subscriptions())
    fill(scan_run.RUNS_COLLECTION, runs(now))
    work = make_work(server_now, max_queue=IN_FLIGHT + RESTING)
    for item in scan(work)[:RESTING]:
        work.give_up(item, error="boom")
    site.record_outcome("run-x", "agency_websites", str(ObjectId()), "failed", now=now)

    asked: dict[str, Callable[[], object]] = {
        "overview": lambda: asyncio.run(read_overview()),
        "thumbnails' figures": stale_thumbnails.system.stats,
        "scans": lambda: scan_run.page("tasks.some.scan0", after=(now - hours(12), ObjectId()), limit=PAGE),
        **{f"rooms {state}": page(DocumentList(work=make_work(server_now)), state) for state in STATES},
        **{f"sites {state}": page(stale_thumbnails.stale_thumbnails(), state) for state in STATES},
        "agencies": page(review_requests(), "due"),
    }
    for name, ask in asked.items():
        with recorder.recording() as sent:
            ask()
        costs = [cost for command in sent for cost in explain(of_one_answer(command))]
        keys, documents = (
            max((cost.keys for cost in costs), default=0),
            max((cost.documents for cost in costs), default=0),
        )
        figure(f"looking: {name}: at most {keys} keys and {documents} documents examined by one statement")
        assert keys <= max(PAGE_READ, DUE + IN_FLIGHT + RESTING) + 10, (name, costs)
        assert documents <= DUE + IN_FLIGHT + RESTING, (name, costs)


def of_one_answer(command: dict[str, Any]) -> dict[str, Any]:
    """Return the statement as far as it was read: a list reads one answer at a time."""
    return command | ({"limit": command["batchSize"]} if "batchSize" in command else {})


def page(listed: Listed, state: Any) -> Callable[[], object]:
    """Return what reads two pages, the second from where the first one ended."""

    def read() -> None:
        first = list(islice(listed.items(state), PAGE))
        if first:
            list(islice(listed.items(state, after=first[-1].position), PAGE))

    return read
