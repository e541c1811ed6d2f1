"""Single ticks of the scheduler: what it stores, sends and logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule
from redbeat.decoder import RedBeatJSONEncoder
from redbeat.schedules import rrule
from redis import Redis

from dev.servers import Valkey
from queue_manager.beat import scan_ticks
from queue_manager.beat.entry import NearRule, StoredEntry
from queue_manager.beat.leader_lock import LeaderLock
from queue_manager.beat.scheduler import LeaderScheduler
from queue_manager.core.clock import ServerClock, hours, seconds
from tests.broker.guard_app import client_app, every
from tests.eventually import eventually
from tests.pace import promptly

LOCK_KEY = "redbeat::lock"
OFTEN = 0.1  # seconds: the period of entries that run several times in a test


@pytest.fixture
def client(server: Valkey) -> Iterator[Redis]:
    with Redis.from_url(server.url, decode_responses=True) as client:
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


def test_standby_does_not_change_the_schedule(server: Valkey, client: Redis) -> None:
    LeaderLock(client, LOCK_KEY, lease=seconds(30)).acquire()

    with scheduling(server, {"items": every(60, "items")}) as scheduler:
        scheduler.tick()

        assert scheduler.epoch == 0
        assert not client.exists("redbeat::schedule", "redbeat::statics")


def test_closed_scheduler_restores_the_clock_of_the_app(server: Valkey) -> None:
    with scheduling(server, {}) as scheduler:
        app = scheduler.app
        assert "now" in app.__dict__

    assert "now" not in app.__dict__


def test_new_leader_deletes_entries_that_are_no_longer_scheduled(server: Valkey, client: Redis) -> None:
    with scheduling(server, {"kept": every(60, "q"), "dropped": every(60, "q")}) as scheduler:
        scheduler.tick()

    with scheduling(server, {"kept": every(60, "q")}) as scheduler:
        scheduler.tick()

        assert scheduler.epoch == 2
        assert client.zrange("redbeat::schedule", 0, -1) == ["redbeat:kept"]
        assert client.smembers("redbeat::statics") == {"kept"}


@pytest.mark.parametrize("deleted", ["redbeat::schedule", "redbeat:items"])
def test_schedule_with_a_deleted_key_is_restored(
    deleted: str, server: Valkey, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_manager.beat.scheduler.SCHEDULE_CHECK_INTERVAL", seconds(0))
    with scheduling(server, {"items": every(60, "items"), "others": every(60, "others")}) as scheduler:
        scheduler.tick()
        client.delete(deleted)
        client.zadd("redbeat::schedule", {"redbeat:others": 1e12})  # its run was recorded a moment later
        scheduler.tick()

        assert scheduler.epoch == 1
        assert sorted(client.zrange("redbeat::schedule", 0, -1)) == ["redbeat:items", "redbeat:others"]
        assert client.hexists("redbeat:items", "definition")


def test_entry_of_the_configuration_that_cannot_be_stored_is_skipped_and_logged_once(
    server: Valkey, client: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("queue_manager.beat.scheduler.SCHEDULE_CHECK_INTERVAL", seconds(0))
    with scheduling(server, {"bad": every(60, "items")}) as scheduler:
        scheduler.tick()

    bad = {**every(60, "items"), "args": [uuid4()]}
    with scheduling(server, {"bad": bad, "new": bad, "good": every(60, "items")}) as scheduler:
        for _ in range(3):
            scheduler.tick()

        assert scheduler.epoch == 2
    assert client.zrange("redbeat::schedule", 0, -1) == ["redbeat:good"]  # nor does `bad` run with its old arguments
    for name in ("bad", "new"):
        assert caplog.text.count(f"skipping the schedule entry redbeat:{name}") == 1


def test_closed_scheduler_releases_the_lock(server: Valkey, client: Redis) -> None:
    with scheduling(server, {}) as scheduler:
        scheduler.tick()
        assert client.exists(LOCK_KEY)

    assert not client.exists(LOCK_KEY)


def test_entry_stays_due_until_its_message_was_sent(
    server: Valkey, client: Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broker = Valkey(tmp_path / "broker")
    with scheduling(server, {"items": every(OFTEN, "items")}, broker_url=broker.url) as scheduler:

        def sent(expected: int) -> None:
            eventually(lambda: scheduler.tick() and "takes no messages" in caplog.text)
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


def test_entry_that_cannot_be_sent_does_not_delay_the_others(server: Valkey, client: Redis) -> None:
    broken = every(OFTEN, "items")
    broken["options"]["serializer"] = "no-such-serializer"
    with scheduling(server, {"a-broken": broken, "items": every(OFTEN, "items")}) as scheduler:
        eventually(lambda: scheduler.tick() and client.llen("items") >= 1)


def test_entries_that_are_due_together_are_sent_together(server: Valkey, client: Redis) -> None:
    schedule = {"often": every(OFTEN, "often"), "rarely": every(2 * OFTEN, "rarely")}
    with scheduling(server, schedule) as scheduler, client.monitor() as monitor:
        eventually(lambda: scheduler.tick() and client.exists("rarely"))
        client.echo("end")
        commands = list(takewhile(lambda command: command != "ECHO end", (one["command"] for one in monitor.listen())))

    first, second = [command.split()[:2] for command in commands if command.startswith(("LPUSH", "HSET"))][-4:-2]
    assert sorted((first, second)) == [["LPUSH", "often"], ["LPUSH", "rarely"]]


@pytest.mark.parametrize("refused", ["a-first", "z-last"])
def test_entry_refused_by_the_broker_does_not_delay_the_others(
    refused: str, server: Valkey, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set("refused", "no list")
    with scheduling(server, {refused: every(OFTEN, "refused"), "items": every(OFTEN, "items")}) as scheduler:
        eventually(lambda: scheduler.tick() and client.llen("items") >= 3)

        meta: Any = client.hget("redbeat:items", "meta")
        assert '"last_run_at": null' not in meta
        assert next_run(client, "items") > next_run(client, refused)
    assert caplog.text.count("takes no messages") == 1


@pytest.mark.parametrize("at", [schedule(timedelta(days=1)), crontab.from_string("0 3 29 2 *")], ids=["every", "at"])
def test_new_entry_runs_at_once_and_not_again_after_a_restart(at: schedule, server: Valkey, client: Redis) -> None:
    on = {"daily": {**every(86_400, "items"), "schedule": at}}
    for scheduled, sent in ((on, 1), (on, 1), ({}, 1), (on, 2)):
        with scheduling(server, scheduled) as scheduler:
            scheduler.tick()
            scheduler.tick()

        assert client.llen("items") == sent


def test_entry_that_ran_long_ago_is_due(server: Valkey, client: Redis) -> None:
    with scheduling(server, {"daily": every(86_400, "items")}) as scheduler:
        scheduler.tick()
        entry = StoredEntry.from_key("redbeat:daily", app=scheduler.app)
        entry.reschedule(last_run_at=datetime.min.replace(tzinfo=UTC))

        eventually(lambda: scheduler.tick() and client.llen("items") == 2)


def test_periods_are_not_affected_by_daylight_saving_time(server: Valkey) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    with scheduling(server, {}) as scheduler:
        entry = StoredEntry("hourly", "guard_app.tick", schedule(hours(1)), app=scheduler.app)
        entry.last_run_at = datetime(2026, 10, 25, 2, 30, tzinfo=berlin)  # the first of two half past two
        assert entry.due_at == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)


def test_short_periods_end_at_their_multiples(server: Valkey, client: Redis) -> None:
    period = 0.25  # seconds; a binary fraction, so that its multiples are exact
    schedule = {"often": every(period, "often"), "rarely": every(2 * period, "rarely")}
    with scheduling(server, schedule) as scheduler:
        next_runs: list[tuple[float, float]] = []

        def is_in_step() -> bool:
            often, rarely = next_run(client, "often"), next_run(client, "rarely")
            next_runs.append((often, rarely))
            if often <= rarely <= often + period:
                return True
            scheduler.tick()  # the last one took until `rarely` was due: it ran one entry before that, one after it
            return False

        for _ in range(3):
            sent = client.llen("often")
            eventually(lambda sent=sent: scheduler.tick() and client.llen("often") == sent + 1)
            eventually(is_in_step)
        assert [runs for runs in next_runs if runs[0] % period or runs[1] % (2 * period)] == []


def test_long_periods_begin_with_the_last_run(server: Valkey, client: Redis) -> None:
    with scheduling(server, {"hourly": every(3600, "items")}) as scheduler:
        began = scheduler.app.now()
        scheduler.tick()
        ended = scheduler.app.now()

    next_at = datetime.fromtimestamp(next_run(client, "hourly"), UTC)
    assert began + hours(1) <= next_at <= ended + hours(1)


def test_next_run_of_an_entry_at_a_time_is_that_time(server: Valkey, client: Redis) -> None:
    on_a_leap_day = {**every(86_400, "items"), "schedule": crontab.from_string("0 3 29 2 *")}
    with scheduling(server, {"leap": on_a_leap_day}) as scheduler:
        scheduler.tick()
        at = datetime.fromtimestamp(next_run(client, "leap"), scheduler.app.timezone) + seconds(30)

    assert at > datetime.now(UTC)
    assert (at.month, at.day, at.hour, at.minute) == (2, 29, 3, 0)


def test_a_run_counts_for_its_own_period_although_the_clock_went_back(server: Valkey) -> None:
    with scheduling(server, {}) as scheduler:
        entry = StoredEntry("often", "guard_app.tick", schedule(seconds(30)), app=scheduler.app)
        entry.last_run_at = scheduler.app.now()
        due_at = entry.due_at
        assert due_at is not None
        following = next(entry)  # by a clock that is not there yet
        assert following.last_run_at == due_at
        assert following.due_at == due_at + seconds(30)


def test_disabled_entry_does_not_run(server: Valkey, client: Redis) -> None:
    with scheduling(server, {"items": every(OFTEN, "items")}) as scheduler:
        often = schedule(seconds(OFTEN), app=scheduler.app)
        options: dict[str, Any] = {"options": {"queue": "off"}, "enabled": False}
        StoredEntry("off", "guard_app.tick", often, app=scheduler.app, **options).save()
        eventually(lambda: scheduler.tick() and client.llen("items") >= 3)
    assert client.llen("off") == 0


def next_run(client: Redis, entry: str) -> float:
    """Return when an entry runs next, as a Unix time."""
    score = client.zscore("redbeat::schedule", f"redbeat:{entry}")
    assert score is not None
    return score


def stored(name: str, **definition: Any) -> dict[str, Any]:
    """Return the definition of an entry as RedBeat stores it."""
    schedule = {"__type__": "interval", "every": 1, "relative": False}
    whole = {"name": name, "task": "guard_app.tick", "args": [], "kwargs": {}, "options": {"queue": "broken"}}
    return {**whole, "schedule": schedule, "enabled": True, **definition}


BROKEN: dict[str, dict[Any, Any]] = {
    "definition-is-no-json": {"definition": "{"},
    "definition-is-not-utf8": {"definition": b"\xff"},
    "definition-is-a-list": {"definition": "[]"},
    "definition-of-unknown-type": {"definition": json.dumps(stored("a", schedule={"__type__": "lunar", "day": 1}))},
    "schedule-is-a-text": {"definition": json.dumps(stored("a", schedule="daily"))},
    "period-is-zero": {
        "definition": json.dumps(stored("a", schedule={"__type__": "interval", "every": 0, "relative": False}))
    },
    "period-is-negative": {
        "definition": json.dumps(stored("a", schedule={"__type__": "interval", "every": -5, "relative": False}))
    },
    "interval-is-zero": {
        "definition": json.dumps(stored("a", schedule={"__type__": "rrule", "freq": "DAILY", "interval": 0}))
    },
    "schedule-is-incomplete": {"definition": json.dumps(stored("a", schedule={"__type__": "interval", "every": 1}))},
    "member-is-unknown": {"definition": json.dumps(stored("a", colour="red"))},
    "kwargs-is-a-number": {"definition": json.dumps(stored("a", kwargs=5))},
    "options-is-a-list": {"definition": json.dumps(stored("a", options=["queue"]))},
    "name-is-anothers": {"definition": json.dumps(stored("items"))},
    "meta-is-no-json": {"definition": json.dumps(stored("a")), "meta": "{"},
    "meta-is-a-number": {"definition": json.dumps(stored("a")), "meta": "5"},
    "meta-is-empty": {"definition": json.dumps(stored("a")), "meta": "{}"},
    "last-run-is-a-text": {"definition": json.dumps(stored("a")), "meta": '{"last_run_at": "today"}'},
}


@pytest.mark.parametrize(
    ("kind", "score"),
    [
        *((kind, 0) for kind in [*BROKEN, "no-hash", "key-is-not-utf8"]),
        *(("meta-is-no-json", score) for score in (-1, 4e9, "+inf")),
    ],
)
def test_broken_entry_is_skipped_and_logged_once(
    kind: str, score: Any, server: Valkey, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with scheduling(server, {"items": every(OFTEN, "items")}) as scheduler:
        scheduler.tick()
        if kind == "key-is-not-utf8":
            client.execute_command("ZADD", "redbeat::schedule", score, b"redbeat:\xff")
        else:
            client.zadd("redbeat::schedule", {"redbeat:a": score})
            if kind == "no-hash":
                client.set("redbeat:a", "a text")
            else:
                client.hset("redbeat:a", mapping=BROKEN[kind])

        eventually(lambda: scheduler.tick() and client.llen("items") >= 2)

    assert client.llen("broken") == 0
    assert caplog.text.count("skipping the schedule entry") == (1 if score == 0 else 0)


@pytest.mark.parametrize("ticks", ["a text", {"sent": "a text"}], ids=["no-hash", "no-number"])
def test_entry_whose_ticks_cannot_be_numbered_does_not_stop_the_others(
    ticks: Any, server: Valkey, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with scheduling(server, {"items": every(OFTEN, "items"), "others": every(OFTEN, "others")}) as scheduler:
        key = "qm:scan-ticks:others"
        client.set(key, ticks) if isinstance(ticks, str) else client.hset(key, mapping=ticks)

        eventually(lambda: scheduler.tick() and client.llen("items") >= 3)

        assert client.llen("others") == 0
        assert caplog.text.count("skipping the schedule entry redbeat:others") == 1
        client.delete(key)
        eventually(lambda: scheduler.tick() and client.llen("others") >= 1)


@pytest.mark.parametrize("kind", [*BROKEN, "no-hash"])
def test_broken_entry_of_the_configuration_is_replaced(kind: str, server: Valkey, client: Redis) -> None:
    if kind == "no-hash":
        client.set("redbeat:items", "a text")
    else:
        client.hset("redbeat:items", mapping=BROKEN[kind])

    with scheduling(server, {"items": every(OFTEN, "items")}) as scheduler:
        eventually(lambda: scheduler.tick() and client.llen("items") >= 1)


@pytest.mark.parametrize("ends", [{"count": 2}, {"until": True}])
def test_expired_entry_is_not_sent_and_the_others_continue(ends: dict[str, Any], server: Valkey, client: Redis) -> None:
    with scheduling(server, {"items": every(OFTEN, "items")}) as scheduler:
        begins = datetime.now(UTC) + seconds(0.5)  # so that an occurrence is left: they are at whole seconds
        ending = {"until": begins + seconds(1)} if "until" in ends else ends
        schedule = rrule("SECONDLY", dtstart=begins, app=scheduler.app, **ending)
        options = {"queue": "ending"}
        StoredEntry("ending", "guard_app.tick", schedule, options=options, app=scheduler.app).save()

        eventually(lambda: scheduler.tick() and client.zscore("redbeat::schedule", "redbeat:ending") == -1)
        before, items = client.llen("ending"), client.llen("items")
        assert 1 <= before <= 3
        client.zadd("redbeat::schedule", {"redbeat:ending": 0})
        eventually(lambda: scheduler.tick() and client.llen("items") >= items + 2)
        assert client.llen("ending") == before


def test_old_entry_of_every_second_continues(server: Valkey, client: Redis) -> None:
    with scheduling(server, {"items": every(OFTEN, "items")}) as scheduler:
        schedule = rrule("SECONDLY", app=scheduler.app)
        entry = StoredEntry("old", "guard_app.tick", schedule, options={"queue": "old"}, app=scheduler.app).save()
        written: Any = client.hget(entry.key, "definition")
        definition = json.loads(written)
        definition["schedule"]["dtstart"] -= 365 * 24 * 3600
        client.hset(entry.key, "definition", json.dumps(definition))

        eventually(lambda: scheduler.tick() and client.llen("old") >= 3 and client.llen("items") >= 3)


def test_entry_whose_schedule_takes_too_long_is_skipped_until_it_changes(
    server: Valkey, client: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("queue_manager.beat.stored_schedule.MAX_EVALUATION", 0.1)
    evaluated: list[datetime] = []
    find = NearRule.after

    def after(rule: NearRule, moment: datetime) -> datetime | None:
        evaluated.append(moment)
        return find(rule, moment)

    monkeypatch.setattr(NearRule, "after", after)
    with scheduling(server, {"items": every(OFTEN, "items")}) as scheduler:
        options: dict[str, Any] = {"options": {"queue": "slow"}, "app": scheduler.app}
        begins = datetime.now(UTC) - hours(24)
        # With a count and a filter, it can only be iterated from its start.
        counted = rrule("SECONDLY", dtstart=begins, count=10**6, bysecond=[*range(60)], app=scheduler.app)
        StoredEntry("slow", "guard_app.tick", counted, **options).save()
        scheduler.tick()
        client.zadd("redbeat::schedule", {"redbeat:slow": 0})
        eventually(lambda: scheduler.tick() and "to evaluate" in caplog.text)

        scheduler.tick()
        evaluations, sent, items = len(evaluated), client.llen("slow"), client.llen("items")
        eventually(lambda: scheduler.tick() and client.llen("items") >= items + 2)
        assert len(evaluated) == evaluations
        assert client.llen("slow") == sent
        assert caplog.text.count("to evaluate") == 1

        StoredEntry("slow", "guard_app.tick", rrule("SECONDLY", app=scheduler.app), **options).save()
        eventually(lambda: scheduler.tick() and client.llen("slow") > sent)


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

    assert client.llen("items") == 2


def test_entries_continue_when_the_clock_of_redis_is_set_back(
    server: Valkey, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scheduling(server, {"items": every(OFTEN, "items")}) as scheduler:
        # A server's clock cannot be set in a test: the scheduler reads one that runs an hour ahead, and then not.
        read = scheduler._redis_time
        monkeypatch.setattr(scheduler, "_redis_time", lambda: read() + hours(1))
        scheduler._clock = ServerClock(scheduler._redis_time)
        eventually(lambda: scheduler.tick() and client.llen("items") >= 1)

        scheduler._clock = ServerClock(read)
        sent = client.llen("items")
        eventually(lambda: scheduler.tick() and client.llen("items") >= sent + 2)


@pytest.mark.parametrize("is_takeover", [False, True])
def test_entries_that_a_program_saved_continue_when_the_clock_of_redis_is_set_back(
    is_takeover: bool, server: Valkey, client: Redis
) -> None:
    with scheduling(server, {}) as scheduler:
        read = scheduler._redis_time
        scheduler._clock = ServerClock(lambda: read() + hours(1))
        often = schedule(seconds(OFTEN), app=scheduler.app)
        StoredEntry("saved", "guard_app.tick", often, options={"queue": "saved"}, app=scheduler.app).save()
        eventually(lambda: scheduler.tick() and client.llen("saved") >= 1)
        sent = client.llen("saved")
        if not is_takeover:
            scheduler._clock = ServerClock(read)
            eventually(lambda: scheduler.tick() and client.llen("saved") >= sent + 2)
    if is_takeover:
        with scheduling(server, {}) as scheduler:
            eventually(lambda: scheduler.tick() and client.llen("saved") >= sent + 2)


def test_takeover_leaves_the_next_runs_of_saved_entries_and_the_absence_of_deleted_ones(
    server: Valkey, client: Redis
) -> None:
    with scheduling(server, {}) as scheduler:
        hourly = schedule(hours(1), app=scheduler.app)
        StoredEntry("saved", "guard_app.tick", hourly, options={"queue": "saved"}, app=scheduler.app).save()
        next_run = client.zscore("redbeat::schedule", "redbeat:saved")
        client.zadd("redbeat::schedule", {"redbeat:deleted": 2**40})
        scheduler.tick()
        assert client.zrange("redbeat::schedule", 0, -1, withscores=True) == [("redbeat:saved", next_run)]
        assert client.llen("saved") == 0


def test_ticks_are_numbered_and_collapse_into_one_run(
    server: Valkey, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_ticks, "_client", lambda: client)
    with scheduling(server, {"items": every(OFTEN, "items")}) as scheduler:
        for sent in range(1, 4):
            eventually(lambda sent=sent: scheduler.tick() and client.llen("items") == sent)
        first, *others = [
            json.loads(raw)["headers"][scan_ticks.TICK_HEADER] for raw in reversed(client.lrange("items", 0, -1))
        ]
        assert [tick["number"] for tick in (first, *others)] == [1, 2, 3]
        assert scan_ticks.begin(first)
        assert not any(scan_ticks.begin(tick) for tick in others)  # sent before that run began

        eventually(lambda: scheduler.tick() and client.llen("items") == 4)
        last: Any = client.lindex("items", 0)
        assert scan_ticks.begin(json.loads(last)["headers"][scan_ticks.TICK_HEADER])


def test_tick_is_executed_without_a_number_or_after_redis_lost_its_data(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_ticks, "_client", lambda: client)
    assert all(scan_ticks.begin(tick) for tick in (None, "x", {}, {"entry": "items", "number": "1"}))
    for _ in range(5):
        late = scan_ticks.issue(client, "items")
    client.flushall()

    assert scan_ticks.begin(late)
    assert scan_ticks.begin(scan_ticks.issue(client, "items"))


def test_scan_whose_tick_cannot_be_checked_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Redis.from_url(Valkey(tmp_path / "never-started").url) as nobody:
        monkeypatch.setattr(scan_ticks, "_client", lambda: nobody)
        assert scan_ticks.begin({"entry": "items", "number": 1})
    assert "could not be checked, so the scan runs" in caplog.text


def test_unavailable_redis_is_reported_once_and_without_password(
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


def test_redis_that_refuses_writes_is_reported_once_and_led_when_it_takes_them(
    server: Valkey, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with scheduling(server, {"items": every(60, "items")}) as scheduler:
        client.config_set("maxmemory", 1)
        for _ in range(3):
            assert scheduler.tick() == 1
        assert scheduler.epoch == 0
        client.config_set("maxmemory", 0)
        scheduler.tick()

        assert scheduler.epoch == 1
        assert client.llen("items") == 1
    assert caplog.text.count("refuses (") == 1


def test_leader_that_loses_its_lock_within_a_loop_sends_nothing_and_stands_by(
    server: Valkey, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LeaderLock(client, LOCK_KEY, lease=seconds(30))
    with scheduling(server, {"items": every(60, "items")}) as scheduler:

        def suspended(*_: object) -> dict[str, Any]:
            client.delete(LOCK_KEY)  # it expired meanwhile
            other.acquire()
            scheduler._lock._renewed_at -= 30
            return {}

        monkeypatch.setattr(scan_ticks, "issue", suspended)
        assert scheduler.tick() == 1

        assert scheduler.epoch == 0
        assert not client.exists("items")
    assert other.extend()  # closing has not released it
