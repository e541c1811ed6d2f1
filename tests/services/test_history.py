"""The history: copied from Redis to MongoDB, any number of times, and kept when Redis loses its data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest
import redis
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, BulkWriteError

from beat_schedule import SYSTEMS
from models import history as stored
from models import mark
from models.database import collection, server_now
from models.history import HOUR, TEN_MINUTES, Bucket
from models.mark import ChartMark
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.core.clock import hours, minutes, seconds, truncate
from queue_manager.core.redis_client import NO_RETRY, connect
from queue_manager.operations.systems import last_day
from queue_manager.telemetry import counters
from services import history
from services.support_snooze import system
from tests.command_log import commands
from tests.real_servers import Servers

NAME = system.name
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def minute(clean: Servers) -> Iterator[int]:
    """The number of the present minute of Redis; the counters' keys are those of the rooms."""
    with connect(clean.valkey.url) as client:
        yield client.time()[0] // 60


def count(servers: Servers, minute: int, **counts: int) -> None:
    """Set what was counted of rooms in a minute."""
    with connect(servers.valkey.url) as client:
        key = f"{counters.history_key(str(system.counted_as))}{minute // 10}"
        client.hset(key, mapping={f"{name.replace('__', '.')}:{minute % 10}": n for name, n in counts.items()})


def copy(servers: Servers, *, now: datetime | None = None) -> None:
    """Copy as a scan does that is the first within the interval."""
    with connect(servers.valkey.url) as client:
        client.delete(history.COPY_LOCK)
    history.copy(SYSTEMS, now=now or server_now())


def sums(length: timedelta) -> dict[str, int]:
    found = stored.read(length, since=NOON - hours(1_000_000), systems=[NAME])
    total: dict[str, int] = {}
    for bucket in found:
        for name, n in bucket.counts.items():
            total[name] = total.get(name, 0) + n
    return total


def test_counters_are_copied_by_ten_minutes_and_by_the_hour(clean: Servers, minute: int) -> None:
    for ago in (0, 1, 15, 90, 600):
        count(clean, minute - ago, done=1, wait__250=2)
    copy(clean)
    assert sums(TEN_MINUTES) == sums(HOUR) == {"done": 5, "wait.250": 10}
    ats = [bucket.at for bucket in stored.read(HOUR, since=NOON - hours(1_000_000), systems=[NAME])]
    assert all(at.minute == 0 for at in ats)
    assert ats == sorted(set(ats))


def test_copying_again_adds_only_new_counters(clean: Servers, minute: int) -> None:
    count(clean, minute, done=1)
    for _ in range(3):
        copy(clean)
    assert sums(TEN_MINUTES) == sums(HOUR) == {"done": 1}
    count(clean, minute, done=4)
    copy(clean)
    assert sums(TEN_MINUTES) == sums(HOUR) == {"done": 4}


def test_one_process_copies_per_interval(clean: Servers, minute: int) -> None:
    copy(clean)
    count(clean, minute, done=1)
    history.copy(SYSTEMS, now=server_now())
    assert sums(TEN_MINUTES) == {}


def test_the_history_survives_the_loss_of_redis(clean: Servers, minute: int) -> None:
    count(clean, minute, done=5)
    copy(clean)
    with connect(clean.valkey.url) as client:
        client.flushall()
    count(clean, minute, done=2)
    copy(clean)
    assert sums(TEN_MINUTES) == sums(HOUR) == {"done": 5}


def test_an_hour_has_what_was_counted_before_and_after_the_loss_of_redis(clean: Servers) -> None:
    def store(*done: int) -> None:
        tens = enumerate(done)
        stored.store(
            Bucket(system=NAME, at=NOON + n * TEN_MINUTES, length=TEN_MINUTES, counts={"done": one}) for n, one in tens
        )

    store(10)
    store(3, 5)
    assert sums(TEN_MINUTES) == sums(HOUR) == {"done": 15}


@pytest.mark.usefixtures("clean")
def test_writes_that_no_majority_confirmed_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise BulkWriteError({"writeErrors": [], "writeConcernErrors": [{"code": 64, "errmsg": "timed out"}]})

    monkeypatch.setattr(Collection, "bulk_write", fail)
    with pytest.raises(BulkWriteError):
        stored.store([Bucket(system=NAME, at=NOON, length=TEN_MINUTES, counts={"done": 1})])


def test_a_missed_hour_is_copied_later(clean: Servers, minute: int) -> None:
    count(clean, minute - 200, done=1)
    copy(clean)
    collection(stored.HISTORY_COLLECTION).delete_many({"at": {"$gt": server_now() - minutes(180)}})
    count(clean, minute - 100, done=2)
    copy(clean)
    assert sums(TEN_MINUTES) == sums(HOUR) == {"done": 3}


@pytest.mark.parametrize("failing", [1, 2])
def test_a_copy_that_failed_is_completed_by_the_next(
    clean: Servers, minute: int, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, writes = stored._write_all, 0

    def write(buckets: Sequence[Bucket]) -> None:
        nonlocal writes
        writes += 1
        if writes == failing:
            raise AutoReconnect("connection closed")
        original(buckets)

    for ago in (0, 70, 140):
        count(clean, minute - ago, done=1)
    monkeypatch.setattr(stored, "_write_all", write)
    with pytest.raises(AutoReconnect):
        copy(clean)
    copy(clean)
    assert sums(TEN_MINUTES) == sums(HOUR) == {"done": 3}


@pytest.mark.parametrize("chosen", ["24h", "7d", "30d", "90d"])
def test_a_range_has_its_steps_and_null_for_unknown_values(clean: Servers, chosen: history.Range) -> None:
    now = server_now()
    at = datetime.fromtimestamp(now.timestamp() // 600 * 600, UTC)
    stored.store([Bucket(system=NAME, at=at, length=TEN_MINUTES, counts={"done": 3, "wait.250": 2})])
    found = history.read(system, chosen, systems=SYSTEMS, now=now)
    whole, step = history.LENGTHS[chosen]
    assert len(found.steps) == whole // step
    assert found.begins_at + whole > now >= found.begins_at + whole - step
    assert found.numbers("done") == [None] * (len(found.steps) - 1) + [3]
    assert found.histograms("wait")[-1].total == 2


def test_the_last_hour_is_read_by_the_minute(clean: Servers, minute: int) -> None:
    for ago in (0, 30, 70):
        count(clean, minute - ago, done=1)
    found = history.read(system, "1h", systems=SYSTEMS, now=server_now())
    assert (len(found.steps), sum(one or 0 for one in found.numbers("done"))) == (60, 2)


@pytest.mark.parametrize("chosen", ["24h", "7d", "30d", "90d"])
def test_counters_that_are_not_copied_yet_are_shown(clean: Servers, minute: int, chosen: history.Range) -> None:
    def shown() -> list[int]:
        return [one for one in history.read(system, chosen, systems=SYSTEMS, now=server_now()).numbers("done") if one]

    count(clean, minute, done=3)
    assert sum(shown()) == 3
    copy(clean)
    assert sum(shown()) == 3
    count(clean, minute, done=5)
    assert sum(shown()) == 5


def test_the_history_is_shown_without_redis(clean: Servers, minute: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count(clean, minute, done=3)
    copy(clean)
    monkeypatch.setattr(history, "_redis", lambda: redis.Redis(port=1, retry=NO_RETRY))
    found = history.read(system, "24h", systems=SYSTEMS, now=server_now())
    assert sum(one or 0 for one in found.numbers("done")) == 3


def test_the_day_of_all_systems_is_the_history_of_each(clean: Servers, minute: int) -> None:
    for ago, done in ((0, 1), (90, 20), (23 * 60, 300), (25 * 60, 4000)):
        count(clean, minute - ago, done=done)
    copy(clean)
    with connect(clean.valkey.url) as client:
        client.flushall()
    count(clean, minute, done=6)
    day = last_day(SYSTEMS)
    found = history.read(system, "24h", systems=SYSTEMS, now=day.server_time)
    of_rooms = day.systems[NAME]
    assert of_rooms is not None
    assert (sum(of_rooms["done"]), len(of_rooms["done"]), day.bucket_seconds) == (326, 144, 600)
    assert (day.begins_at, of_rooms["done"]) == (found.begins_at, [one or 0 for one in found.numbers("done")])


def test_an_error_in_the_counts_of_a_system_does_not_affect_the_history_of_others(clean: Servers, minute: int) -> None:
    def fail() -> NoReturn:
        raise KeyError("BILLING")

    some = [replace(system, name="trial-end", counts=fail), system]
    count(clean, minute, done=3)
    history.copy(some, now=server_now())
    assert sums(TEN_MINUTES) == {"done": 3}
    day, hour = last_day(some), history.read_many(some, "1h", now=server_now())
    assert (day.systems["trial-end"], sum((day.systems[NAME] or {})["done"])) == (None, 3)
    assert {name: sum(one or 0 for one in found.numbers("done")) for name, found in hour.items()} == {
        "trial-end": 0,
        NAME: 3,
    }


@pytest.mark.parametrize("copied", [0, 20, 50])
def test_counters_that_no_scan_copies_for_hours_are_shown_once(clean: Servers, minute: int, copied: int) -> None:
    def shown() -> list[int]:
        day = last_day(SYSTEMS).systems[NAME]
        assert day is not None
        found = history.read(system, "7d", systems=SYSTEMS, now=server_now())
        return [sum(day["done"]), sum(one or 0 for one in found.numbers("done"))]

    for ago in (5, 60, 300):
        count(clean, minute - ago, done=50)
    if copied:  # of the first ones, by the last scan before the outage
        at = datetime.fromtimestamp((minute - 300) // 10 * 600, UTC)
        stored.store([Bucket(system=NAME, at=at, length=TEN_MINUTES, counts={"done": copied})])
    assert shown() == [150, 150]
    copy(clean)
    assert shown() == [150, 150]


def test_only_what_is_not_copied_yet_is_read_from_redis(
    clean: Servers, minute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_minute, spans = counters.by_minute, list[int]()

    def read(*where: Any, first: int, last: int) -> list[dict[int, counters.Totals]]:
        spans.append(last - first)
        return by_minute(*where, first=first, last=last)

    count(clean, minute - 90, done=1)
    copy(clean)
    monkeypatch.setattr(counters, "by_minute", read)
    assert sum((last_day([system]).systems[NAME] or {})["done"]) == 1
    (span,) = spans
    assert span < 20  # the ten minutes of the copy, and those that may have begun since


def test_redis_is_read_after_mongodb(clean: Servers, minute: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Redis hangs, the time passes that a caller gives MongoDB."""
    count(clean, minute, done=3)
    copy(clean)
    with commands() as sent:

        def hang(*_: Any, **__: Any) -> NoReturn:
            sent.append("Redis")
            raise redis.TimeoutError("no reply")

        monkeypatch.setattr(history, "_counted", hang)
        found = history.read(system, "24h", systems=SYSTEMS, now=server_now())
    assert sum(one or 0 for one in found.numbers("done")) == 3
    assert (sent.count("Redis"), sent[-1]) == (1, "Redis")


def test_documents_expire_according_to_the_length_of_their_step(clean: Servers) -> None:
    stored.store([Bucket(system=NAME, at=NOON, length=TEN_MINUTES, counts={"done": 1})])
    found = {one["seconds"]: one["expires_at"] - one["at"] for one in collection(stored.HISTORY_COLLECTION).find()}
    assert found == {600: minutes(10) + hours(72), 3600: hours(1 + 92 * 24)}


# Marks


def test_a_leader_is_marked_once(clean: Servers) -> None:
    with connect(clean.valkey.url) as client:
        since_ms = int(server_now().timestamp() * 1000)
        client.hset(LEADER_LOCK, mapping={"token": "t", "host": "h", "pid": 1, "since_ms": since_ms, "epoch": 7})
        client.pexpire(LEADER_LOCK, 60_000)
    for _ in range(2):
        copy(clean)
    assert [(one.kind, one.text) for one in mark.read(server_now() - hours(1))] == [("leader", "h:1 leads, epoch 7")]


def test_a_time_without_scans_becomes_an_outage_when_scans_resume(clean: Servers) -> None:
    now = truncate(server_now())
    for at in (now - hours(2), now - hours(2) + seconds(30), now, now):
        copy(clean, now=at)
    (outage,) = mark.read(now - minutes(1))
    assert (outage.kind, outage.at, outage.until) == ("outage", now - hours(2) + seconds(30), now)


def test_an_outage_that_could_not_be_marked_is_marked_by_the_next_copy(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ChartMark) -> NoReturn:
        raise AutoReconnect("connection closed")

    now = truncate(server_now())
    copy(clean, now=now - hours(2))
    with monkeypatch.context() as patched:
        patched.setattr(mark, "add", fail)
        with pytest.raises(AutoReconnect):
            copy(clean, now=now - minutes(1))
    copy(clean, now=now)
    (outage,) = mark.read(now - hours(3))
    assert (outage.kind, outage.at, outage.until) == ("outage", now - hours(2), now)


def test_an_ongoing_outage_is_shown(clean: Servers) -> None:
    now = truncate(server_now())
    copy(clean, now=now - hours(2))
    assert mark.read(now - hours(3)) == []
    (outage,) = history.read(system, "24h", systems=SYSTEMS, now=now).marks
    assert (outage.at, outage.until) == (now - hours(2), now)


def test_all_marks_of_the_same_time_are_kept(clean: Servers) -> None:
    for text in ("v1", "v2"):
        mark.add(ChartMark(kind="deployment", at=NOON, text=text, by="ada"))
    assert [(one.text, one.by) for one in mark.read(NOON)] == [("v1", "ada"), ("v2", "ada")]


def test_only_the_latest_marks_are_read(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark, "MAX_MARKS", 3)
    for number in range(5):
        mark.add(ChartMark(kind="deployment", at=NOON + minutes(number), text=f"v{number}", by="ada"))
    assert [one.text for one in mark.read(NOON)] == ["v2", "v3", "v4"]
