"""The health rules of a system whose work waits as intended: one that is paused, and one that runs once a week."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from models import outbox, scan_run
from models.database import collection, server_now
from queue_manager import pauses
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.core.clock import minutes, unix_ms
from queue_manager.core.redis_client import connect
from queue_manager.health.problems import problems_of_system
from queue_manager.health.readings import read
from queue_manager.health.report import health
from queue_manager.health_rules import Rule
from queue_manager.system import System
from services.support_snooze import system
from tests.real_servers import Servers
from tests.rooms import lose, make_room, make_work, scan

RUN = {"found": 3, "claimed": 2, "enqueued": 2, "errors": 0, "duration_ms": 40}
WAITING = {Rule.LAG, Rule.STUCK_ITEMS, Rule.FAILING_CALLS}


def rules(of: System = system) -> list[Rule]:
    return [one.rule for one in problems_of_system(of, asyncio.run(read()))]


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
    how_to_resume = "its scans dispatch nothing until `queue-manager systems resume support-snooze`"
    assert [detail for detail in health().details if detail.endswith(how_to_resume)]
    assert {rule for rule in Rule if rule.unless_idle} == WAITING


@pytest.mark.usefixtures("clean")
def test_a_call_that_is_postponed_is_not_a_problem() -> None:
    call = {"system": system.name, "at": server_now() - minutes(10), "items": []}
    collection(outbox.OUTBOX_COLLECTION).insert_one({**call, "postponed_until": server_now() + minutes(1)})
    assert rules() == []


def test_a_weekly_scan_is_late_after_three_weeks_and_not_when_its_report_was_deleted(clean: Servers) -> None:
    weekly = replace(system, every=timedelta(days=7))
    since_ms = unix_ms(server_now() - timedelta(days=60))
    with connect(clean.valkey.url) as client:
        client.hset(LEADER_LOCK, mapping={"token": "t", "host": "h", "pid": 1, "since_ms": since_ms, "epoch": 1})
    for days, expected in ((2, []), (22, [Rule.LATE_SCAN])):
        scan_run.record(weekly.scan_task, RUN, error=None, now=server_now() - timedelta(days=days))
        collection(scan_run.RUNS_COLLECTION).delete_many({})  # as the TTL monitor does
        assert rules(weekly) == expected
