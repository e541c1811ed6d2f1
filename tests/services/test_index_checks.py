"""Health checks indexes, Redis and writes of MongoDB once in several seconds, and names problems within that time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from beat_schedule import SYSTEMS
from models import deployment, scan_run, schema
from models.database import collection
from queue_manager.core.errors import Unavailable
from queue_manager.core.redis_client import connect
from queue_manager.health import readings
from queue_manager.health.readings import InMongoDB
from queue_manager.health_rules import Problem, Rule
from queue_manager.telemetry import counters
from services.support_snooze import system
from tests.command_log import commands
from tests.e2e.health_command import locked_mongodb
from tests.eventually import eventually
from tests.pace import promptly
from tests.real_servers import Servers

ROOMS = "support_rooms"


def in_mongodb() -> InMongoDB:
    found = asyncio.run(readings.read(60)).mongodb
    assert isinstance(found, InMongoDB)
    return found


def expire() -> None:
    """Let the interval pass in which existing indexes are not listed again."""
    ends = readings._checked_until.values()
    assert max(ends) - time.monotonic() <= readings.RECHECK_INTERVAL <= 10
    readings._checked_until = dict.fromkeys(readings._checked_until, 0.0)


def test_indexes_that_exist_are_not_listed_again_for_seconds(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "RECHECK_INTERVAL", 600.0)
    listed = []
    for _ in range(2):
        with commands() as sent:
            in_mongodb()
        listed.append({one.removeprefix("listIndexes ") for one in sent if one.startswith("listIndexes ")})
    assert {ROOMS, *schema.SHARED_INDEXES} <= listed[0]
    assert listed[1] == {*scan_run.RUN_INDEXES}


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
    monkeypatch.setattr(readings, "RECHECK_INTERVAL", 600.0)
    in_mongodb()
    collection(ROOMS).drop_indexes()
    try:
        assert isinstance(asyncio.run(readings.read(60)).stats[system.name], Problem)
        assert in_mongodb().missing_indexes[system.name] != []
    finally:
        schema.migrate(SYSTEMS)


def test_a_write_that_mongodb_does_not_confirm_delays_one_reading_in_seconds(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "RECHECK_INTERVAL", 600.0)
    monkeypatch.setattr(readings, "WRITE_TIMEOUT", 1.0)
    monkeypatch.setattr(readings, "_checked_writes", {})
    probe = Mock(wraps=deployment.probe_write)
    monkeypatch.setattr(deployment, "probe_write", probe)

    def is_refused() -> bool:
        problem = asyncio.run(readings.read(60)).mongodb_writes
        return problem is not None and problem.rule is Rule.REFUSED_WRITES

    def read_without(server: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(readings, server, Mock(side_effect=Unavailable("away")))
            asyncio.run(readings.read(60))

    with locked_mongodb(clean.mongo.url), promptly(30):
        assert [is_refused(), is_refused(), probe.call_count] == [True, True, 1]
        read_without("_broker")
        assert [is_refused(), probe.call_count] == [True, 1]
        read_without("_mongodb")
        assert [is_refused(), probe.call_count] == [True, 2]


def test_reading_again_needs_no_new_connection_to_redis_and_few_commands(
    clean: Servers, monkeypatch: pytest.MonkeyPatch, change_settings: Callable[..., None]
) -> None:
    for flag in ("CONVERSATIONS", "PROJECTS", "SITES_FIX_STALE_THUMBNAILS", "MESSAGE_QUEUE", "JOBS"):
        change_settings(**{f"QM_{flag}": "true"})
    monkeypatch.setattr(readings, "RECHECK_INTERVAL", 600.0)
    monkeypatch.setattr(counters, "_now", lambda _: 1_000_000_000)  # the same minute
    with connect(clean.valkey.url) as client:

        def is_cheap() -> bool:
            client.config_resetstat()
            asyncio.run(readings.read(60))
            sent = {name.removeprefix("cmdstat_"): one["calls"] for name, one in client.info("commandstats").items()}
            assert client.info("stats")["total_connections_received"] == 0
            assert "info" not in sent
            assert sum(sent.values()) <= 80, sent
            return True

        asyncio.run(readings.read(60))
        # Not at once: the threads of a reading open as many connections as happen to be in use at the same time, and
        # other clients of the server send commands, too.
        eventually(is_cheap)
