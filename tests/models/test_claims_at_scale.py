"""A scan reads only what is due, however many rooms there are: `explain` on the real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from models.claimable import Selection
from rooms import T0, HandClock, make_room, make_service

from beat_schedule import SYSTEMS
from models import schema, support_room
from queue_manager.core.clock import hours, seconds
from services.due_work import Backlog

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
def test_scan_reads_what_is_due_and_nothing_else(figure: Callable[[str], None]) -> None:
    # A list on the way to the date, of another test, cannot be kept out: see docs/decisions/partial-indexes.md.
    support_room.rooms().drop()
    schema.migrate(SYSTEMS)
    rooms = fill(ROOMS)
    while some := list(islice(rooms, 20_000)):
        support_room.rooms().insert_many(some, ordered=False)
    make_room([T0 - seconds(1), T0])  # a list in an index would change the plans of all the others
    clock = HandClock()
    snooze = make_service(clock, max_queue=IN_FLIGHT + COOLING)
    held = [item for batch in snooze.claim_due(Backlog()) for item in batch.items]
    for item in held[:COOLING]:
        snooze.give_up(item, error="boom")
    due = support_room.claims().of

    selections = {
        "unclaimed": (due.unclaimed(T0), DUE),
        "ahead": (due.unclaimed(T0 + seconds(10), after=T0), 0),
        "returned": (due.returned(T0), 0),
        "lost": (due.lost(T0), 0),
        "void": (due.void(T0), 0),
    }
    examined = {}
    for name, (selection, expected) in selections.items():
        stages, keys, documents, found = explain(selection)
        figure(f"snooze scan: {ROOMS:,} rooms, {name}: {found} found, {keys} keys and {documents} documents examined")
        assert found == expected
        assert "COLLSCAN" not in stages
        assert "SORT" not in stages
        examined[name] = keys
    in_flight = IN_FLIGHT + COOLING
    assert all(keys <= selections[name][1] + 10 for name, keys in examined.items() if name != "void")
    assert examined["void"] <= in_flight + 10
    assert sum(examined.values()) <= DUE + in_flight + 10


def explain(selection: Selection) -> tuple[set[str], int, int, int]:
    """Return the stages of the plan, and the keys, documents and results of running it."""
    plan = (
        support_room.rooms()
        .find(selection.where, {"_id": 1}, hint=selection.index, sort=selection.sort or None)
        .explain()
    )
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
