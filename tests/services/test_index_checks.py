"""Health lists indexes that exist once in several seconds, and reports missing ones within that time."""

from __future__ import annotations

import asyncio
import time

import pytest

from beat_schedule import SYSTEMS
from models import scan_run, schema
from models.database import collection
from queue_manager.health import readings
from queue_manager.health.readings import InMongoDB
from queue_manager.health_rules import Problem
from services.support_snooze import system
from tests.command_log import commands
from tests.real_servers import Servers

ROOMS = "support_rooms"


def in_mongodb() -> InMongoDB:
    found = asyncio.run(readings.read(60)).mongodb
    assert isinstance(found, InMongoDB)
    return found


def expire() -> None:
    """Let the interval pass in which existing indexes are not listed again."""
    ends = readings._complete_until.values()
    assert max(ends) - time.monotonic() <= readings.INDEX_CHECK_INTERVAL <= 10
    readings._complete_until = dict.fromkeys(readings._complete_until, 0.0)


def test_indexes_that_exist_are_not_listed_again_for_seconds(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "INDEX_CHECK_INTERVAL", 600.0)
    listed = []
    for _ in range(2):
        with commands() as sent:
            in_mongodb()
        listed.append({one.removeprefix("listIndexes ") for one in sent if one.startswith("listIndexes ")})
    assert {ROOMS, *schema.shared_collections()} <= listed[0]
    assert listed[1] == {*scan_run.collections()}


def test_a_dropped_index_is_missing_until_it_exists_again(clean: Servers) -> None:
    assert in_mongodb().missing_indexes[system.name] == []
    collection(ROOMS).drop_indexes()
    try:
        expire()
        for _ in range(2):
            missing = in_mongodb().missing_indexes[system.name]
            assert {name.partition(".")[0] for name in missing} == {ROOMS}
    finally:
        schema.migrate(SYSTEMS)
    assert in_mongodb().missing_indexes[system.name] == []


def test_an_index_that_counting_errors_needs_is_missing_at_once(clean: Servers) -> None:
    assert in_mongodb().errors == {}
    collection(scan_run.RUNS_COLLECTION).drop_indexes()
    try:
        found = in_mongodb()
    finally:
        schema.migrate(SYSTEMS)
    assert (found.errors, bool(found.missing_shared_indexes)) == (None, True)


def test_indexes_are_listed_again_after_statistics_failed(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "INDEX_CHECK_INTERVAL", 600.0)
    in_mongodb()
    collection(ROOMS).drop_indexes()
    try:
        assert isinstance(asyncio.run(readings.read(60)).stats[system.name], Problem)
        assert in_mongodb().missing_indexes[system.name] != []
    finally:
        schema.migrate(SYSTEMS)
