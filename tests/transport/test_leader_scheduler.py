"""One loop of the scheduler at a time: what it writes, sends and says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from guard_app import client_app, every
from pace import promptly
from redbeat.decoder import RedBeatJSONEncoder
from redis import Redis

from queue_manager.core.clock import hours, seconds
from queue_manager.devstack.servers import Valkey
from queue_manager.transport.beat import LeaderScheduler
from queue_manager.transport.leadership import LeaderLock

LOCK_KEY = "redbeat::lock"


@pytest.fixture
def client(server: Valkey) -> Iterator[Redis]:
    with Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client


@contextmanager
def scheduling(
    server: Valkey, schedule: dict[str, dict[str, Any]], *, broker_url: str = "", schedule_url: str = ""
) -> Iterator[LeaderScheduler]:
    """A scheduler in this process; its ticks are the caller's to make."""
    with client_app(broker_url or server.url, schedule_url=schedule_url or server.url) as app:
        app.conf.beat_schedule = schedule
        scheduler = LeaderScheduler(app)
        try:
            yield scheduler
        finally:
            scheduler.close()
            app.redbeat_redis.close()


def test_standby_leaves_the_schedule_alone(server: Valkey, client: Redis) -> None:
    LeaderLock(client, LOCK_KEY, lease=seconds(30)).acquire()

    with scheduling(server, {"items": every(60, "items")}) as scheduler:
        scheduler.tick()

        assert scheduler.epoch == 0
        assert not client.exists("redbeat::schedule", "redbeat::statics")


def test_new_leader_drops_what_is_no_longer_scheduled(server: Valkey, client: Redis) -> None:
    with scheduling(server, {"kept": every(60, "q"), "dropped": every(60, "q")}) as scheduler:
        scheduler.tick()

    with scheduling(server, {"kept": every(60, "q")}) as scheduler:
        scheduler.tick()

        assert scheduler.epoch == 2
        assert client.zrange("redbeat::schedule", 0, -1) == ["redbeat:kept"]
        assert client.smembers("redbeat::statics") == {"kept"}


def test_closed_scheduler_gives_the_lock_back(server: Valkey, client: Redis) -> None:
    with scheduling(server, {}) as scheduler:
        scheduler.tick()
        assert client.exists(LOCK_KEY)

    assert not client.exists(LOCK_KEY)


def test_entry_stays_due_until_its_message_was_sent(
    server: Valkey, client: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker = Valkey(tmp_path / "broker")
    with scheduling(server, {"items": every(1, "items")}, broker_url=broker.url) as scheduler:

        def sent(expected: int) -> None:
            eventually(lambda: scheduler.tick() and "takes no messages" in caplog.text, within=5)
            before = client.hget("redbeat:items", "meta")
            with promptly(2):  # well within the lock's 6 s
                scheduler.tick()
            assert client.hget("redbeat:items", "meta") == before
            with broker, Redis.from_url(broker.url) as broker_client:
                scheduler.tick()
                assert broker_client.llen("items") == expected
            assert client.hget("redbeat:items", "meta") != before
            assert caplog.text.count("takes no messages") == 1
            caplog.clear()

        sent(1)  # the broker was never reached
        sent(2)  # the connection to it broke
        assert scheduler.epoch == 1


def test_entry_that_cannot_be_sent_does_not_hold_up_the_others(server: Valkey, client: Redis) -> None:
    broken = every(1, "items")
    broken["options"]["serializer"] = "no-such-serializer"
    with scheduling(server, {"a-broken": broken, "items": every(1, "items")}) as scheduler:
        eventually(lambda: scheduler.tick() and client.llen("items") >= 1, within=5)


@pytest.mark.parametrize("ahead", [timedelta(hours=3), timedelta(days=400)])
def test_entry_that_ran_in_the_future_runs_now(ahead: timedelta, server: Valkey, client: Redis) -> None:
    entry = {"hourly": every(hours(1).total_seconds(), "items")}
    with scheduling(server, entry) as scheduler:
        scheduler.tick()
    meta = {"last_run_at": datetime.now(UTC) + ahead}
    client.hset("redbeat:hourly", "meta", json.dumps(meta, cls=RedBeatJSONEncoder))

    with scheduling(server, entry) as scheduler:
        scheduler.tick()
        scheduler.tick()

    assert client.llen("items") == 1


def test_redis_that_is_away_is_reported_once_and_without_password(
    server: Valkey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = f"redis://:secret@127.0.0.1:{Valkey(tmp_path / 'never-started').port}/0"
    with scheduling(server, {}, schedule_url=nobody) as scheduler:
        for _ in range(3):
            assert scheduler.tick() == 1

    reports = [record.getMessage() for record in caplog.records if "standing by" in record.getMessage()]
    assert len(reports) == 1
    assert "is unreachable" in reports[0]
    assert "secret" not in caplog.text
