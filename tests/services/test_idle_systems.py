"""The health rules that do not apply to a system that is paused, whose work waits as intended, and those that do."""

from __future__ import annotations

import asyncio

import pytest

from models import outbox
from models.database import collection, server_now
from queue_manager import pauses
from queue_manager.core.clock import minutes
from queue_manager.health import problems_of_system, read
from queue_manager.health_rules import Rule
from services.support_snooze import system
from tests.rooms import lose, make_room, make_work, scan

WAITING = {Rule.LAG, Rule.STUCK_ITEMS, Rule.FAILING_CALLS}


def rules() -> list[Rule]:
    return [one.rule for one in problems_of_system(system, asyncio.run(read()))]


@pytest.mark.usefixtures("clean")
def test_waiting_work_is_a_problem_unless_its_system_is_paused() -> None:
    work, now = make_work(server_now), server_now()
    for _ in range(2):
        make_room(now - minutes(10))
    stuck, failed = scan(work)
    lose(work, stuck, ago=minutes(5))
    work.give_up(failed, error="boom")
    make_room(snooze_time="tomorrow")
    call = {"system": system.name, "at": now - minutes(10), "items": []}
    collection(outbox.OUTBOX_COLLECTION).insert_one(call)
    found = rules()
    assert {*found} == {*WAITING, Rule.FAILED_ITEMS, Rule.UNREADABLE_DOCUMENTS}
    assert found[0] is Rule.UNREADABLE_DOCUMENTS, "critical problems come first"
    pauses.pause(system.name, by="a test")
    assert rules() == [Rule.UNREADABLE_DOCUMENTS, Rule.FAILED_ITEMS]
    assert {rule for rule in Rule if rule.unless_idle} == WAITING
