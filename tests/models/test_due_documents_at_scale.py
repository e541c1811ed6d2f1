"""A scan reads only what is due, however many rooms there are: `explain` on the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

import pytest
from rooms import T0, make_room

from beat_schedule import SYSTEMS
from models import schema, support_room
from queue_manager.core.clock import hours, seconds
from services.due_documents import work_of
from services.due_work import Backlog, Limits
from services.support_snooze import system

ROOMS = 1_000_000
DUE, IN_FLIGHT, COOLING = 500, 300, 200


def fill(count: int) -> Iterator[dict[str, Any]]:
    """A tenth of the rooms is snoozed until later, the rest is open or closed; a few are due."""
    for number in range(count):
        if number < DUE + IN_FLIGHT + COOLING:
            yield {"status": "snoozed", "snooze_time": {"time": T0 - seconds(number + 1)}}
        elif number % 10 == 0:
            yield {"status": "snoozed", "snooze_time": {"time": T0 + hours(1) + seconds(number)}}
        else:
            yield {"status": "open" if number % 3 else "closed", "snooze_queue_in_progress": False}


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("clean")
def test_scan_reads_what_is_due_once_and_nothing_else(figure: Callable[[str], None]) -> None:
    support_room.rooms().drop()
    schema.migrate(SYSTEMS)
    rooms = fill(ROOMS)
    while some := list(islice(rooms, 20_000)):
        support_room.rooms().insert_many(some, ordered=False)
    make_room([T0 - seconds(1), T0])  # a list in an index would change the plans of all the others
    work = replace(work_of(system), clock=lambda: T0, ahead=seconds(10))
    first = replace(work, limits=Limits(batch=100, max_queue=IN_FLIGHT + COOLING, ahead=200))
    held = [item for batch in first.take_due(Backlog()) for item in batch.items]
    work.leases.release([item.lease for item in held[:COOLING]], pause=hours(1))

    finds = {"due": (T0, None, DUE + IN_FLIGHT + COOLING), "ahead": (T0 + seconds(10), T0, 0)}
    examined = 0
    for name, (until, after, expected) in finds.items():
        stages, keys, documents, found = explain(until, after)
        figure(f"snooze scan: {ROOMS:,} rooms, {name}: {found} found, {keys} keys and {documents} documents examined")
        assert found == expected
        assert not {"COLLSCAN", "SORT"} & stages
        examined += keys
    assert examined <= DUE + IN_FLIGHT + COOLING + 10
    sent = [item for batch in work.take_due(Backlog()) for item in batch.items]
    assert (len(held), len(sent)) == (IN_FLIGHT + COOLING, DUE)


def explain(until: datetime, after: datetime | None) -> tuple[set[str], int, int, int]:
    """Return the stages of the plan, and the keys, documents and results of running it."""
    documents = work_of(system).documents
    found = support_room.rooms().find(documents.is_due(until, after=after), {"_id": 1, documents.due: 1})
    plan = found.hint(documents.index).sort([(path, 1) for path in documents.order]).explain()
    stats = plan["executionStats"]
    return set(stages_of(stats)), stats["totalKeysExamined"], stats["totalDocsExamined"], stats["nReturned"]


def stages_of(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "stage" in node:
            yield node["stage"]
        for value in node.values():
            yield from stages_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from stages_of(value)
