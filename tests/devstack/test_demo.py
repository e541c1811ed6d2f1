"""The demo writes rooms as a product would, touches only its own, and the summary counts what became of them."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from eventually import eventually
from pymongo.collection import Collection

from models import support_room
from queue_manager.core.clock import minutes, seconds
from queue_manager.devstack import demo, summary
from queue_manager.devstack.children import spawn

NOW = datetime(2026, 1, 31, 9, 30, 0, 123456, tzinfo=UTC)


@pytest.fixture
def rooms(clean: object) -> Collection[dict[str, Any]]:
    return support_room.rooms()


def test_rooms_are_snoozed_as_the_product_does(rooms: Collection[dict[str, Any]]) -> None:
    demo.fill(rooms, NOW)
    room = rooms.find_one({"snooze_time.time": {"$lt": NOW}})
    assert room is not None
    assert room["status"] == "snoozed"
    assert set(room["snooze_time"]) == {"time", "set_by", "set_at"}
    assert room["snooze_time"]["set_at"] == NOW.replace(microsecond=123000)
    assert room["demo_due_at"] == room["snooze_time"]["time"]


def test_only_the_demos_oldest_woken_rooms_are_deleted(rooms: Collection[dict[str, Any]]) -> None:
    somebody_elses = rooms.insert_one({"status": "open"}).inserted_id
    oldest = rooms.insert_one({"status": "open", "demo": True}).inserted_id
    rooms.insert_many([{"status": "open", "demo": True} for _ in range(demo.KEPT_WOKEN)])
    rooms.insert_one({"status": "snoozed", "demo": True})
    demo.clear_up(rooms)
    assert rooms.count_documents({"demo": True}) == demo.KEPT_WOKEN + 1
    assert rooms.find_one(somebody_elses)
    assert rooms.find_one(oldest) is None


def test_it_runs_by_itself_and_stops_when_asked(rooms: Collection[dict[str, Any]]) -> None:
    child = spawn([sys.executable, "-m", "queue_manager.devstack.demo"], env=os.environ)
    eventually(lambda: rooms.count_documents({"demo": True}) >= 2 * demo.OVERDUE_AT_START)
    child.end()
    assert child.wait() == 0


def test_the_summary_counts_and_measures_the_lag(rooms: Collection[dict[str, Any]]) -> None:
    rooms.insert_many(
        [
            {"snooze_time": {"time": NOW + seconds(5)}},
            {"snooze_time": {"time": NOW - seconds(5)}},
            {"unsnoozed_at": NOW - minutes(5)},
            {"unsnoozed_at": NOW - seconds(1), "demo_due_at": NOW - seconds(1.25), "account_id": ObjectId()},
        ]
    )
    assert summary.describe(rooms, NOW) == (
        "rooms: 1 snoozed, 1 due, 2 woken (1 in the last minute), lag of the last 0.25 s"
    )
