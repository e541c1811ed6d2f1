"""The systems over HTTP: their state, the schedule, their scans; also while a server is unavailable."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from beat_schedule import SYSTEMS
from models import scan_run, schema
from models.database import server_now
from queue_manager import pauses
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.beat.status import SCHEDULE_KEY
from queue_manager.broker.keys import SCHEDULE_PREFIX
from queue_manager.core.clock import hours, minutes, seconds, to_iso
from queue_manager.core.redis_client import connect
from queue_manager.core.wording import clock
from queue_manager.health.readings import Readings, read
from queue_manager.health_rules import Problem, Rule
from queue_manager.operations import systems as operations
from queue_manager.operations.systems import read_overview
from queue_manager.system import SystemStats
from queue_manager.telemetry import counters, worker_heartbeats
from tests.e2e.celery_processes import CeleryProcess
from tests.eventually import eventually
from tests.pace import promptly
from tests.real_servers import Servers
from tests.rooms import make_room, make_work, scan
from tests.web.web_process import Lonely, Web, lonely_web

SCAN, QUEUE = "tasks.support_snooze.scan_expired_snoozes", "support-snooze"
RUN = {"found": 3, "claimed": 2, "enqueued": 2, "errors": 0, "duration_ms": 40}
NAMES = [system.name for system in SYSTEMS]
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def get(process: Web, path: str) -> Any:
    answer = process.get(f"/api{path}")
    assert answer.status == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.body


def system(process: Web, name: str = "support-snooze") -> Any:
    (found,) = [one for one in get(process, "/overview")["systems"] if one["name"] == name]
    return found


def lead(url: str, *, since: datetime = LONG_AGO, **runs_at: float) -> None:
    """Do what a beat does that leads."""
    with connect(url) as client:
        since_ms = str(int(since.timestamp() * 1000))
        fields = {"token": "t", "host": "h", "pid": "1", "since_ms": since_ms, "epoch": "7"}
        client.hset(LEADER_LOCK, mapping=fields)
        client.pexpire(LEADER_LOCK, 60_000)
        for name, at in runs_at.items():
            client.zadd(SCHEDULE_KEY, {f"{SCHEDULE_PREFIX}{name.replace('_', '-')}": at})


def test_the_overview_contains_every_system(clean: Servers, process: Web) -> None:
    make_room(server_now() - seconds(61))  # a second more, because two processes know the server's clock differently
    scan_run.record(SCAN, {**RUN, "requeued": 1}, error=None, now=server_now())
    body = eventually(lambda: (b := get(process, "/overview"))["systems"][0]["due"] == 1 and b)
    assert body["servers"] == {"mongodb": None, "redis": None}
    assert [one["name"] for one in body["systems"]] == NAMES
    assert (body["leader"], body["workers"]) == (None, [])
    rooms = body["systems"][0]
    assert (rooms["is_on"], rooms["page"]) == (True, "/rooms")
    assert (rooms["due"], rooms["in_progress"], rooms["stuck"], rooms["failed"]) == (1, 0, 0, 0)
    assert 60 <= rooms["lag_seconds"] < 90
    assert rooms["last_scan"].items() >= RUN.items()
    assert (rooms["errors"], rooms["done_per_minute"], rooms["next_scan_at"]) == (0, 0, None)
    others = body["systems"][1:]
    assert [(one["is_on"], one["due"], one["lag_seconds"]) for one in others] == [(False, None, None)] * 4


def test_the_overview_has_the_leader_and_its_next_scans(clean: Servers, process: Web) -> None:
    at = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
    lead(clean.valkey.url, support_snooze=at.timestamp(), stale_thumbnails=at.timestamp())
    body = eventually(lambda: (b := get(process, "/overview"))["leader"] and b)
    leader = body["leader"]
    assert (leader["holder"], leader["since"], leader["epoch"]) == ("h:1", "2026-01-01T00:00:00.000Z", 7)
    assert 0 < leader["lease_left_seconds"] <= 60
    assert body["systems"][0]["next_scan_at"] == "2030-01-01T00:00:00.000Z"
    assert [one["next_scan_at"] for one in body["systems"][1:]] == [None] * 4  # they are off


def test_errors_of_a_day_are_added_up(clean: Servers, process: Web) -> None:
    now = server_now()
    for errors, ago in ((2, hours(1)), (3, hours(23)), (100, hours(25)), (0, hours(1))):
        scan_run.record(SCAN, {**RUN, "errors": errors}, error="boom" if errors else None, now=now - ago)
    assert eventually(lambda: system(process)["errors"] == 5)
    assert system(process)["problems"][0]["rule"] == "late-scan"


def test_problems_name_their_items_and_link_to_them(clean: Servers, process: Web) -> None:
    make_room(server_now() - seconds(300))
    work = make_work(server_now)
    (item,) = scan(work)
    work.give_up(item, error="boom")
    body = eventually(lambda: (b := get(process, "/overview"))["systems"][0]["failed"] == 1 and b)
    assert [problem["rule"] for problem in body["problems"]] == ["no-leader", "no-workers"]
    rooms = body["systems"][0]
    (failed,) = [problem for problem in rooms["problems"] if problem["rule"] == "failed-items"]
    assert failed["system"] == "support-snooze"
    assert failed["text"].startswith("1 failed room:")
    assert item.args[0] in failed["text"]
    assert failed["page"] == "/rooms?state=failed"
    assert failed["action"] == Rule.FAILED_ITEMS.action


def test_a_system_that_never_ran_is_starting_until_it_is_late(clean: Servers, process: Web) -> None:
    lead(clean.valkey.url, since=server_now() - seconds(2))
    body = eventually(lambda: (b := get(process, "/overview"))["leader"] and b["systems"][0]["is_starting"] and b)
    assert (body["systems"][0]["problems"], body["problems"]) == ([], [])
    lead(clean.valkey.url, since=server_now() - minutes(5))
    rooms = eventually(lambda: not (one := system(process))["is_starting"] and one)
    assert rooms["problems"][0]["text"] == "The scan is late: it has not run in the last 24 hours"
    run_at = server_now() - minutes(30)
    scan_run.record(SCAN, RUN, error=None, now=run_at)
    late = {f"The scan is late: it last ran at {clock(run_at, now)}" for now in (run_at, run_at + hours(24))}
    eventually(lambda: system(process)["problems"][0]["text"] in late)
    with connect(clean.valkey.url) as client:
        client.delete(LEADER_LOCK)
    eventually(lambda: get(process, "/overview")["leader"] is None)  # the next test sees no answer from before


def test_the_last_minute_and_the_last_day_are_counted(clean: Servers, process: Web) -> None:
    with connect(clean.valkey.url) as client:
        minute = client.time()[0] // 60
        for ago, done in ((1, 4), (2, 50), (10, 600), (24 * 60 + 20, 7000)):
            at = minute - ago
            client.hset(f"{counters.history_key(QUEUE)}{at // 10}", f"done:{at % 10}", done)
    counters.items(QUEUE, {"done": 1, "failed": 2, "retried": 3})
    day = get(process, "/overview/history")
    of_rooms = day["systems"]["support-snooze"]
    assert {len(of_rooms[outcome]) for outcome in ("done", "failed", "retried")} == {144}
    newest = {outcome: sum(of_rooms[outcome][-2:]) for outcome in ("failed", "retried")}  # ten minutes may end here
    assert (sum(of_rooms["done"]), newest) == (655, {"failed": 2, "retried": 3})
    assert day["bucket_seconds"] == 600
    assert 143 * 600 <= time.time() - datetime.fromisoformat(day["begins_at"]).timestamp() <= 144 * 600 + 5
    assert sum(day["systems"]["overdue-messages"]["done"]) == 0
    eventually(lambda: system(process)["done_per_minute"] == 4 or int(time.time()) // 60 > minute)


def test_the_history_of_a_day_expires_soon_after_it(clean: Servers) -> None:
    counters.items(QUEUE, {"done": 1})
    with connect(clean.valkey.url) as client:
        (key,) = client.scan_iter(f"{counters.history_key(QUEUE)}*")
        assert 24 * 3600 < client.ttl(key) < 25 * 3600
        assert counters.totals(client, [counters.source(QUEUE)]) == [{"done": 1}]


def test_one_system_has_all_its_stats(clean: Servers, process: Web) -> None:
    body = eventually(lambda: (b := get(process, "/systems/support-snooze"))["numbers"].get("malformed") == 0 and b)
    assert body["numbers"].keys() >= {"pending", "cooling_off"}
    assert (body["hooks"], body["trigger"]) == (False, None)
    answer = process.get("/api/systems/nonsense")
    assert (answer.status, answer.body["field"]) == (404, "name")


def test_scans_are_listed_by_pages_the_newest_first(clean: Servers, process: Web) -> None:
    now = server_now()
    for number in range(7):  # pairs at one moment
        scan_run.record(SCAN, {**RUN, "found": number, "stamped": 2}, error=None, now=now - seconds(number // 2))
    seen: list[Any] = []
    cursor: str | None = ""
    for _ in range(4):
        page = get(process, f"/systems/support-snooze/scans?limit=2&cursor={cursor}")
        seen += page["scans"]
        cursor = page["cursor"]
    assert cursor is None
    assert sorted(run["found"] for run in seen) == list(range(7))
    assert [run["at"] for run in seen] == sorted((run["at"] for run in seen), reverse=True)
    assert seen[0]["noted"] == {"stamped": 2}
    assert "error" not in seen[0]


def test_the_slowest_scans_come_first_on_demand(clean: Servers, process: Web) -> None:
    now = server_now()
    for number, took in enumerate((40, 900, 200, 900)):
        scan_run.record(SCAN, {**RUN, "found": number, "duration_ms": took}, error=None, now=now - seconds(number))
    page = get(process, "/systems/support-snooze/scans?sort=duration&limit=3")
    assert [run["found"] for run in page["scans"]] == [1, 3, 2]
    assert page["cursor"] is None


@pytest.mark.parametrize("cursor", ["nonsense", "W10=", "WyJhIl0=", "W251bGwsbnVsbF0=", "%ff"])
def test_a_malformed_cursor_is_422(cursor: str, clean: Servers, process: Web) -> None:
    answer = process.get(f"/api/systems/support-snooze/scans?cursor={cursor}")
    assert (answer.status, answer.body["field"]) == (422, "cursor")


def test_the_schedule_shows_every_scan(clean: Servers, process: Web) -> None:
    now = server_now()
    lead(clean.valkey.url, support_snooze=(now + seconds(5)).timestamp())
    scan_run.begin(SCAN, "a run", now=now)
    for number in range(12):
        scan_run.record(SCAN, {**RUN, "found": number}, error="boom" if number == 11 else None, now=now)
    body = get(process, "/schedule")
    entries = {entry["name"]: entry for entry in body["entries"]}
    assert list(entries) == NAMES
    rooms = entries["support-snooze"]
    assert (rooms["is_on"], rooms["is_running"], rooms["period_seconds"], rooms["cron"]) == (True, True, 10, None)
    assert rooms["next_run_at"] == to_iso(now + seconds(5))
    assert len(rooms["last_runs"]) == 10
    assert rooms["last_run"] == rooms["last_runs"][0]
    assert entries["stale-thumbnails"]["cron"] == "0 * * * *"
    assert (entries["stale-thumbnails"]["last_run"], entries["stale-thumbnails"]["next_run_at"]) == (None, None)
    assert body["leader"]["holder"] == "h:1"


def test_runs_of_a_paused_system_are_marked(clean: Servers, process: Web) -> None:
    now = server_now()
    scan_run.record(SCAN, {**RUN, "paused": 1}, error=None, now=now)
    scan_run.record(SCAN, RUN, error=None, now=now + seconds(1))
    runs = get(process, "/schedule")["entries"][0]["last_runs"]
    assert [run["is_paused"] for run in runs] == [False, True]


@pytest.mark.processes
def test_next_scans_are_those_of_a_real_beat(clean: Servers, process: Web, tmp_path: Path) -> None:
    with CeleryProcess(tmp_path / "beat.log", "beat", env={"QM_SNOOZE_SCAN_SECONDS": "30"}):
        leader = eventually(lambda: get(process, "/schedule")["leader"])
        assert leader["lease_left_seconds"] <= 6
        with promptly(5):
            entry = eventually(lambda: on_the_half_minute(next_run(process)))  # not its first run, which is at once
        assert entry - server_now() < seconds(31)
        with promptly(3):
            eventually(lambda: system(process)["next_scan_at"] == next_run(process))
    # It was killed: after its lock has ended nobody leads, and nobody knows.
    assert eventually(lambda: system(process)["next_scan_at"] is None and next_run(process) is None)


def on_the_half_minute(at: str | None) -> datetime | None:
    found = None if at is None else datetime.fromisoformat(at)
    return found if found is not None and (found.second % 30, found.microsecond) == (0, 0) else None


def next_run(process: Web) -> Any:
    return get(process, "/schedule")["entries"][0]["next_run_at"]


# Servers that are unavailable


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[Lonely]:
    with lonely_web(tmp_path, QM_MESSAGE_QUEUE="true") as lonely:
        yield lonely


@pytest.mark.processes
def test_values_of_unavailable_servers_are_null_with_a_reason(lonely: Lonely) -> None:
    process, mongo, valkey = lonely.process, lonely.mongo, lonely.valkey
    with promptly(4):
        answer = process.get("/api/overview")
    assert answer.status == 200
    body = answer.body
    assert body["servers"]["mongodb"].startswith(f"MongoDB at {mongo.url} does not answer")
    assert body["servers"]["redis"].startswith(f"Redis at {valkey.url} does not answer")
    assert (body["leader"], body["workers"]) == (None, None)
    unknown = ("due", "in_progress", "lag_seconds", "done_per_minute", "errors", "last_scan", "next_scan_at")
    assert {one[field] for one in body["systems"] for field in unknown} == {None}
    # An outage is remembered for a moment: each look takes seconds to find it.
    eventually(lambda: process.get("/api/overview").took < 0.5, every=0)
    valkey.start()
    presence_of(valkey.url, "worker@there 1")
    body = eventually(lambda: (b := get(process, "/overview"))["servers"]["redis"] is None and b)
    assert [worker["name"] for worker in body["workers"]] == ["worker@there"]
    assert body["servers"]["mongodb"] is not None
    mongo.start()
    assert eventually(lambda: get(process, "/overview")["servers"]["mongodb"] is None)
    os.kill(valkey.pid, signal.SIGSTOP)
    time.sleep(1.1)  # longer than the last answer is kept
    try:
        with promptly(4):
            hanging = process.get("/api/overview")
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
    assert (hanging.body["servers"]["mongodb"], hanging.body["workers"]) == (None, None)
    assert hanging.body["servers"]["redis"] is not None
    messages = hanging.body["systems"][NAMES.index("overdue-messages")]
    assert (messages["due"], messages["is_on"], messages["problems"]) == (None, True, [])


def test_overview_has_the_numbers_from_redis_while_mongodb_is_away(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Problem(system="mongodb", rule=Rule.SERVER_AWAY, text="MongoDB does not answer")

    async def without_mongodb() -> Readings:
        stats = {QUEUE: Problem(system=QUEUE, rule=Rule.UNKNOWN_STATE, text=away.text)}
        of_messages = {"overdue-messages": SystemStats(numbers={"pending": 7, "dead": 2})}
        return replace(await read(), mongodb=away, stats={**stats, **of_messages})

    monkeypatch.setattr(operations, "read", without_mongodb)
    states = {one.name: one for one in asyncio.run(read_overview()).systems}
    messages = states["overdue-messages"]
    assert (messages.due, messages.failed, messages.numbers) == (7, 2, {"pending": 7, "dead": 2})
    assert messages.pages == {"due": "/messages", "failed": "/messages/failed"}
    assert (states[QUEUE].due, states[QUEUE].numbers) == (None, {})


def test_each_system_has_the_number_where_counting_its_due_items_stops(
    clean: Servers, change_settings: Callable[..., None]
) -> None:
    change_settings(QM_PROJECTS="true")
    counted_to = {one.name: one.counted_to for one in asyncio.run(read_overview()).systems}
    assert (counted_to[QUEUE], counted_to["review-requests"], counted_to["overdue-messages"]) == (100_000, 10_000, None)


def test_errors_of_scans_are_unknown_while_a_shared_index_is_missing(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan_run.record(SCAN, {**RUN, "errors": 3}, error="x", now=server_now())

    def errors() -> int | None:
        return next(one.errors for one in asyncio.run(read_overview()).systems if one.name == QUEUE)

    assert errors() == 3
    monkeypatch.setattr(schema, "missing", lambda _: ["scan_runs latest"])
    assert errors() is None


def presence_of(url: str, member: str) -> None:
    with connect(url) as client:
        now, micros = client.time()
        client.zadd(worker_heartbeats.WORKERS_KEY, {member: now * 1000 + micros // 1000})


def test_a_system_is_paused_until_it_is_resumed(clean: Servers, process: Web) -> None:
    path = "/api/systems/support-snooze"
    for reason in (None, "the mail provider is down"):
        answer = process.post(f"{path}/pause", None if reason is None else json.dumps({"reason": reason}))
        made = answer.body["pause"]
        assert (answer.status, answer.body) == (200, {"name": "support-snooze", "is_paused": True, "pause": made})
        assert (made["by"], made["reason"]) == ("loopback", reason)
        # Each process estimates the server's time: by milliseconds this one may be behind that one.
        assert abs(server_now() - datetime.fromisoformat(made["at"])) < seconds(60)
        assert system(process)["pause"] == made  # at once, although it was read a moment before
    assert pauses.paused().keys() == {"support-snooze"}
    assert system(process)["idle"] == "paused"
    for wrong in ({"reason": ""}, {"reason": "x" * 501}, {"why": "x"}):
        assert process.post(f"{path}/pause", json.dumps(wrong)).status == 422
    answer = process.post(f"{path}/resume", "{}")
    assert (answer.status, answer.body) == (200, {"name": "support-snooze", "is_paused": False, "pause": None})
    assert pauses.paused() == {}


def test_an_unknown_system_is_not_paused(clean: Servers, process: Web) -> None:
    answer = process.post("/api/systems/rooms/pause")
    assert (answer.status, answer.body["field"]) == (404, "name")
    assert pauses.paused() == {}


def test_a_system_whose_scan_dispatches_nothing_is_not_paused(clean: Servers, process: Web) -> None:
    answer = process.post("/api/systems/overdue-messages/pause")
    assert (answer.status, answer.body["error"]) == (409, "conflict")
    assert "queue-manager queue pause" in answer.body["message"]
    assert pauses.paused() == {}
