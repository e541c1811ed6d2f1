"""A scan reads only due documents, however many rooms there are: by the server's profile of a real scan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
from pymongo import MongoClient

from beat_schedule import SYSTEMS
from models import database, schema, support_room
from models.database import Document
from queue_manager.core.clock import hours, seconds
from queue_manager.core.settings import settings
from tests.real_servers import Servers
from tests.rooms import T0, AgingClock, make_room, make_work, scan

pytestmark = pytest.mark.scale

ROOMS = 1_000_000
DUE, IN_FLIGHT, COOLING = 500, 300, 200
PROFILED = "profiled"
"""The name of the client whose commands `profile` returns."""
LISTS: list[Any] = [
    *({"time": [T0 - seconds(1), T0]}, {"time": [None, T0]}, {"time": []}),
    *([{"time": T0}], [None, {"time": T0}], []),
]
"""Snoozes with a list on the path of the date. Some cannot be kept out of the index, and change it for good."""


def fill(count: int) -> Iterator[dict[str, Any]]:
    """A tenth of the rooms is snoozed until later, the rest is open or closed; a few are due."""
    for number in range(count):
        if number < DUE + IN_FLIGHT + COOLING:
            yield {"status": "snoozed", "snooze_time": {"time": T0 - seconds(number + 1)}}
        elif number % 10 == 0:
            yield {"status": "snoozed", "snooze_time": {"time": T0 + hours(1) + seconds(number)}}
        else:
            yield {"status": "open" if number % 3 else "closed", "snooze_queue_in_progress": False}


@pytest.fixture
def own_rooms(clean: Servers) -> Iterator[None]:
    """A collection of the test's own: to delete a million documents one by one would take the next test a minute."""
    support_room.rooms().drop()
    schema.migrate(SYSTEMS)
    yield
    support_room.rooms().drop()
    schema.migrate(SYSTEMS)


@pytest.mark.smoke
@pytest.mark.usefixtures("own_rooms")
def test_scan_reads_only_due_documents(figure: Callable[[str], None]) -> None:
    for snooze_time in LISTS:
        deleted = make_room(snooze_time=snooze_time)
        support_room.rooms().delete_one({"_id": deleted})
        make_room(snooze_time=snooze_time)
    rooms = fill(ROOMS)
    while some := list(islice(rooms, 20_000)):
        support_room.rooms().insert_many(some, ordered=False)
    clock = AgingClock()
    first = make_work(clock, max_queue=IN_FLIGHT + COOLING)
    for item in scan(first)[:COOLING]:
        first.give_up(item, error="boom")

    with profile() as found:
        dispatched = scan(make_work(clock), waiting=IN_FLIGHT)

    assert len(dispatched) == DUE
    reads = [one for one in found if one["op"] in ("query", "getmore")]
    keys, documents = (sum(one[name] for one in reads) for name in ("keysExamined", "docsExamined"))
    figure(f"snooze scan: {ROOMS:,} rooms, {DUE} dispatched: {keys} keys and {documents} documents examined")
    assert keys <= len(dispatched) + IN_FLIGHT + COOLING + 10
    assert {one["planSummary"] for one in reads} == {"IXSCAN { snooze_time.time: 1, _id: 1 }"}
    assert not any(one.get("hasSortStage") for one in reads)


@contextmanager
def profile(name: str = support_room.ROOMS_COLLECTION) -> Iterator[list[dict[str, Any]]]:
    """Have the server profile what this process does with a collection; the list is filled at the end.

    The web processes of other tests read the same collections, also after a listener has left: the client has a name of
    its own meanwhile.
    """
    profiles, found = database.collection("system.profile"), list[Document]()
    profiles.drop()
    database.database().command("profile", 2)
    options: dict[str, Any] = {**database._CLIENT_OPTIONS, "appname": PROFILED}
    try:
        with MongoClient(settings().mongo_db_url, **options) as client, pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "client", lambda: client)
            yield found
    finally:
        database.database().command("profile", 0)
        found += profiles.find({"ns": f"{database.database().name}.{name}", "appName": PROFILED})
        profiles.drop()
