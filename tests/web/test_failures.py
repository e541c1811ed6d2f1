"""Failures over HTTP: grouped by name and reason, and replayed by group."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from urllib.parse import parse_qsl, urlsplit

import anyio
import pytest
from anyio import create_task_group, to_thread, wait_all_tasks_blocked
from bson import ObjectId
from fastapi import Request
from pymongo.errors import ExecutionTimeout

from models.database import server_now
from models.job import JobState, jobs
from queue_manager.broker import dead_letters
from queue_manager.core.clock import hours, seconds
from queue_manager.core.errors import Unavailable
from queue_manager.core.redis_client import connect
from queue_manager.operations import failures as operations
from queue_manager.operations.failures import replay
from queue_manager.web.routes import failures
from queue_manager.web.routes.failures import FailureReader, ReplayedFailures, ReplayUntil
from services import message_queue, stale_thumbnails, support_snooze
from services.audit import Actor
from services.failures import (
    MAX_FAILURES,
    NO_REASON,
    FailureGroup,
    FailureKind,
    FailureList,
    FailureMember,
    Failures,
    read_failures,
)
from tasks.systems import require_tasks
from tests.any_jobs import INVOICE
from tests.any_jobs import MODULE as JOBS_MODULE
from tests.eventually import eventually
from tests.job_lab import end_job
from tests.real_servers import Servers
from tests.rooms import make_room, make_work, scan
from tests.tasks.hand_worker import waiting_messages
from tests.web.credentials import KEYS, VIEWER
from tests.web.queue_client import NAME, Queue, empty_queue, environment

ADA = Actor(who="ada", via="page", address="here")
MESSAGES, ROOMS, JOBS = "overdue-messages", "support-snooze", "job-queues"


@pytest.fixture
def queue(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(clean, tmp_path_factory, QM_JOBS="true", QM_HOOKS="true", JOBS_IMPORTS=JOBS_MODULE)


@pytest.fixture
def own_queue(queue: Queue, change_settings: Callable[..., None]) -> Iterator[Queue]:
    """The queue of the web process, which this process uses, too."""
    change_settings(**environment(queue.redis_url))
    message_queue._scripts.take()
    yield queue
    message_queue._scripts.take()


def fail_message(queue: Queue, reason: str, type: str = "mail") -> str:
    id = queue.add(type=type, maxAttempts=1, priority=9)
    taken = queue.take()
    queue.post(f"/queue/message/{id}/nack", {"lock_token": taken["lock_token"], "errorReason": reason})
    return id


def fail_rooms(*reasons: str) -> list[str]:
    """Return the ids of rooms whose last attempt failed."""
    work, ids = make_work(server_now), []
    for reason in reasons:
        make_room(server_now() - seconds(300))
        (item,) = scan(work)
        work.give_up(item, error=reason)
        ids.append(str(item.args[0]))
    return ids


def fail_job(queue: Queue, reason: str) -> str:
    id = str(queue.post("/jobs", {"name": INVOICE, "arguments": [reason]}).body["job"]["_id"])
    end_job(id, JobState.FAILURE, backoff=hours(1), error=reason)
    return id


def fail_letter(servers: Servers, reason: str, number: int = 0) -> None:
    about = {"delivery_tag": str(number), "delivery_info": {"exchange": "", "routing_key": "scans"}}
    message = {"body": "", "content-type": "x", "content-encoding": "x", "headers": {}, "properties": about}
    with connect(servers.valkey.url) as client:
        letter = {"at": time.time(), "queue": "scans", "reason": reason, "message": json.dumps(message)}
        client.lpush(dead_letters.DEAD_LETTERS, json.dumps(letter))


def read(queue: Queue, reasons: set[str], query: str = "") -> list[Any]:
    """Return the groups, once they are those of these reasons, which no other test has."""

    def groups() -> list[Any] | None:
        answer = queue.get(f"/failures?{query}")
        assert answer.status == 200, answer.text
        found: list[Any] = answer.body["groups"]
        return found if {one["reason"] for one in found} == reasons else None

    return eventually(groups)


def test_failures_of_each_kind_are_grouped_by_name_and_reason(clean: Servers, queue: Queue) -> None:
    for number in range(3):
        fail_message(queue, f"Timeout after {number}.5 s")
    fail_message(queue, "Timeout after 1.5 s", type="letter")
    fail_rooms("Boom at 10.0.0.1", "Boom at 10.0.0.2")
    for number in range(2):
        fail_job(queue, f"no order {number}")
        fail_letter(clean, f"unknown task {number}", number)
    reasons = {"Timeout after <duration>", "Boom at <address>", "no order <number>", "unknown task <number>"}
    groups = {(one["kind"], one["system"], one["name"], one["reason"]): one for one in read(queue, reasons)}
    assert {key: one["count"] for key, one in groups.items()} == {
        ("message", MESSAGES, "mail", "Timeout after <duration>"): 3,
        ("message", MESSAGES, "letter", "Timeout after <duration>"): 1,
        ("item", ROOMS, ROOMS, "Boom at <address>"): 2,
        ("job", JOBS, INVOICE, "no order <number>"): 2,
        ("broker", "broker", "scans", "unknown task <number>"): 2,
    }
    for one in groups.values():
        assert one["first_at"] <= one["last_at"]
        assert (len(one["by_hour"]), sum(one["by_hour"])) == (24, one["count"])
    pages = {one["kind"]: one["page"] and urlsplit(one["page"]) for one in groups.values() if one["name"] != "letter"}
    assert {kind: page and (page.path, dict(parse_qsl(page.query))) for kind, page in pages.items()} == {
        "message": ("/messages/failed", {"filterType": "mail", "search": "Timeout after"}),
        "item": ("/rooms", {"state": "failed", "search": "Boom at"}),
        "job": ("/jobs", {"name": INVOICE, "state": "failure", "search": "no order"}),
        "broker": None,
    }


def test_pages_of_failures_without_a_reason_list_them(queue: Queue) -> None:
    message = {"id": "m", "type": "mail", "created_at": 1704067200, "payload": 1}
    with queue.redis() as client:
        client.xadd(f"{NAME}_dlq", {"data": json.dumps(message)})  # as another program
    (room,) = fail_rooms("")
    job = fail_job(queue, "")
    jobs().update_one({"_id": ObjectId(job)}, {"$unset": {"last_error": ""}})
    queries = {one["kind"]: urlsplit(one["page"]).query for one in read(queue, {NO_REASON})}
    found = queue.get(f"/systems/{ROOMS}/items?{queries['item']}").body["items"]
    assert (queue.ids("dead", queries["message"]), [one["id"] for one in found]) == (["m"], [room])
    assert [one["_id"] for one in queue.get(f"/jobs?{queries['job']}").body["jobs"]] == [job]
    assert len(queries) == 3


def test_the_groups_are_filtered(queue: Queue) -> None:
    fail_message(queue, "first reason")
    fail_message(queue, "other reason")
    fail_rooms("first reason")
    assert len(read(queue, {"first reason", "other reason"})) == 3
    assert [one["kind"] for one in read(queue, {"first reason"}, "system=support-snooze")] == ["item"]
    assert {one["kind"] for one in read(queue, {"first reason"}, "search=FIRST")} == {"item", "message"}
    assert queue.get("/failures?system=&search=").status == 200
    assert queue.get("/failures?serach=x").status == 422
    unknown = queue.get("/failures?system=suport-snooze")
    assert (unknown.status, unknown.body["field"]) == (404, "system")
    assert "There is no system 'suport-snooze' (did you mean support-snooze?)" in unknown.body["message"]
    assert queue.get("/failures?system=broker").status == 200


def test_a_reason_that_is_not_utf_8_is_shown(clean: Servers, queue: Queue) -> None:
    fail_letter(clean, "odd \ud800 text")
    assert read(queue, {"odd ? text"})[0]["name"] == "scans"


def test_a_group_of_messages_is_replayed_without_the_others(queue: Queue) -> None:
    wanted = [fail_message(queue, f"broken {number}") for number in range(3)]
    other = fail_message(queue, "something else")
    first, _ = read(queue, {"broken <number>", "something else"})
    answer = queue.post(f"/failures/{first['id']}/replay", {"until": first["last_at"]})
    assert answer.body == {"replayed": 3, "of": 3, "is_complete": True}
    shown = queue.get("/failures").body["groups"]  # read anew
    assert [one["reason"] for one in shown] == ["something else"]
    assert sorted(queue.ids("main")) == sorted(wanted)
    assert queue.ids("dead") == [other]
    (entry,) = queue.get("/audit").body["entries"]
    assert (entry["action"], entry["system"], sorted(entry["ids"])) == ("replay", MESSAGES, sorted(wanted))
    assert (entry["filter"], entry["count"]) == ({"name": "mail", "reason": "broken <number>"}, 3)
    assert len(read(queue, {"something else"})) == 1


def test_failures_after_the_given_time_are_not_replayed(queue: Queue) -> None:
    early = fail_message(queue, "late 1")
    (group,) = read(queue, {"late <number>"})
    late = fail_message(queue, "late 2")
    answer = queue.post(f"/failures/{group['id']}/replay", {"until": group["last_at"]})
    assert answer.body == {"replayed": 1, "of": 1, "is_complete": True}
    assert (queue.ids("main"), queue.ids("dead")) == ([early], [late])
    assert queue.post(f"/failures/{group['id']}/replay").body["replayed"] == 1


def test_groups_of_items_jobs_and_broker_messages_are_retried(clean: Servers, queue: Queue) -> None:
    rooms = fail_rooms("lost 1", "lost 2")
    jobs = [fail_job(queue, f"no invoice {number}") for number in range(2)]
    for number in range(2):
        fail_letter(clean, f"no task {number}", number)
    for group in read(queue, {"lost <number>", "no invoice <number>", "no task <number>"}):
        answer = queue.post(f"/failures/{group['id']}/replay")
        assert answer.body == {"replayed": 2, "of": 2, "is_complete": True}, group
    entries = {entry["system"]: entry for entry in queue.get("/audit?limit=3").body["entries"]}
    assert {system: entry["action"] for system, entry in entries.items()} == {
        **dict.fromkeys((ROOMS, JOBS), "retry"),
        "broker": "replay",
    }
    assert {system: len(entry["ids"]) for system, entry in entries.items()} == dict.fromkeys((ROOMS, JOBS, "broker"), 2)
    assert {message.args[0] for message in waiting_messages(clean.valkey.url, ROOMS)} == set(rooms)
    assert {queue.get(f"/jobs/{id}").body["job"]["state"] for id in jobs} == {"pending"}
    with connect(clean.valkey.url) as client:
        assert (client.llen("scans"), dead_letters.count(client)) == (2, 0)


def test_every_action_on_a_declared_job_is_found_by_the_id_that_is_listed(queue: Queue) -> None:
    def fail() -> None:
        jobs().delete_many({})
        jobs().insert_one({**template, "_id": id})

    def timeline() -> tuple[str, list[str]]:
        (found,) = queue.get(f"/search?id={id}").body["found"]
        return found["label"], [one["event"] for one in found["timeline"] if "by" in one["event"]]

    id, retried = "declared:invoice", "Retried by someone on this machine"
    (template,) = jobs().find({"_id": ObjectId(fail_job(queue, "lost"))})
    fail()
    queue.post(f"/failures/{read(queue, {'lost'})[0]['id']}/replay")
    fail()
    assert queue.post("/jobs/retry", {"ids": [id]}).body["changed"] == 1
    fail()
    assert queue.post(f"/jobs/{id}/retry").status == 200
    (listed,) = queue.get("/jobs").body["jobs"]
    assert listed["_id"] == queue.get(f"/search?id={id}").body["found"][0]["id"] == id
    assert timeline() == ("pending", [retried] * 3)
    assert queue.delete(f"/jobs/{id}").status == 200
    assert timeline() == ("deleted", ["Removed by someone on this machine", *[retried] * 3])
    assert [one["action"] for one in queue.get(f"/audit?id={id}").body["entries"]] == ["remove", *["retry"] * 3]


def test_the_audit_of_a_replay_names_only_what_was_replayed(own_queue: Queue) -> None:
    queue = own_queue
    require_tasks()
    failed: dict[str, tuple[FailureKind, str]] = {
        MESSAGES: ("message", fail_message(queue, "lost")),
        ROOMS: ("item", fail_rooms("lost")[0]),
        JOBS: ("job", fail_job(queue, "lost")),
    }
    for system, (kind, id) in failed.items():
        group = FailureGroup(kind=kind, system=system, name="any", reason="lost", sample="lost")
        assert replay(group, [str(ObjectId()), id], ADA, is_over=lambda: False) == (1, True)
    entries = {entry["system"]: entry for entry in queue.get("/audit?limit=3").body["entries"]}
    assert {system: (entry["ids"], entry["count"], entry["total"]) for system, entry in entries.items()} == {
        system: ([id], 1, 2) for system, (_, id) in failed.items()
    }


@pytest.mark.usefixtures("clean")
def test_a_replay_begins_no_slice_after_the_process_was_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ending, slices = asyncio.Event(), list[list[str]]()

    def end_during_second(_: FailureGroup, ids: list[str]) -> list[str]:
        slices.append(ids)
        if len(slices) == 2:
            ending.set()
        return ids

    members = [FailureMember(id=id, at=server_now()) for id in ("1", "2", "3")]
    group = FailureGroup(kind="job", system=JOBS, name=INVOICE, reason="lost", sample="lost", members=members)
    monkeypatch.setattr(failures, "find_group", lambda _: (group, True))
    monkeypatch.setitem(operations._REPLAYS, "job", end_during_second)
    request = cast(Request, SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(ending=ending))))

    answer = failures.replay_failures(request, "any", ReplayUntil(), ADA)

    assert slices == [["3"], ["2"]]
    assert answer == ReplayedFailures(replayed=2, of=3, is_complete=False)


def test_a_failure_after_the_time_of_the_database_counts_as_one_of_this_hour() -> None:
    now = server_now()
    later = FailureMember(id="1", at=now + seconds(1))
    group = FailureGroup(kind="broker", system="broker", name="scans", reason="x", sample="x", members=[later])
    assert group.by_hour(now) == [0] * 23 + [1]


def test_only_the_newest_failures_are_read(clean: Servers, queue: Queue) -> None:
    with connect(clean.valkey.url) as client:
        letter = {"at": time.time(), "queue": "scans", "reason": "x", "message": "{}"}
        client.lpush(
            dead_letters.DEAD_LETTERS, *(json.dumps({**letter, "message": str(n)}) for n in range(MAX_FAILURES + 1))
        )
    (group,) = read(queue, {"x"})
    assert group["count"] == MAX_FAILURES
    lists = {one["system"]: one for one in queue.get("/failures").body["lists"]}
    assert (lists["broker"]["read"], lists["broker"]["is_complete"]) == (MAX_FAILURES, False)
    assert lists[MESSAGES]["is_complete"]


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unavailable("Redis is away"), "Redis is away"),
        (ExecutionTimeout("operation exceeded time limit"), "MongoDB did not return all within 30 s"),
        (KeyError("address"), "Its `items` raised KeyError: 'address'"),
    ],
    ids=["outage", "slow", "bug"],
)
def test_a_list_that_cannot_be_read_hides_no_other(error: Exception, said: str) -> None:
    def fail() -> NoReturn:
        raise error

    fail_rooms("Boom")
    unreadable = replace(stale_thumbnails.system, flag=None, items=fail)
    found = read_failures([unreadable, support_snooze.system])
    assert [one.sample for one in found.groups] == ["Boom"]
    of_items = [(one.is_complete, one.problem) for one in found.sources if one.kind == "item"]
    assert of_items == [(False, said), (True, None)]


@pytest.mark.parametrize(
    ("problem", "readings"), [(None, [1, 1, 1, 2]), ("MongoDB is away", [1, 1, 2, 3])], ids=["complete", "outage"]
)
def test_a_complete_read_is_cached_for_ten_times_its_duration(
    problem: str | None, readings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, read = 100.0, list[float]()

    def read_slowly(_: Any) -> Failures:
        nonlocal now
        read.append(now)
        now += 10
        jobs = FailureList(kind="job", system=JOBS, title="Jobs", read=0, is_complete=not problem, problem=problem)
        return Failures(groups=[], sources=[jobs])

    monkeypatch.setattr(failures, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(failures, "read_failures", read_slowly)
    reader, found = FailureReader(), []
    for pause in (0, 2, 2, 97):
        now += pause
        reader.read()
        found.append(len(read))
    assert found == readings


@pytest.mark.usefixtures("clean")
def test_requests_that_wait_for_a_slow_read_occupy_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    read_on = threading.Event()

    def read_slowly(_: Any) -> Failures:
        read_on.wait(30)
        return Failures(groups=[], sources=[])

    async def ask_often() -> int:
        async with create_task_group() as asking:
            for _ in range(50):
                asking.start_soon(failures.failures)
            await wait_all_tasks_blocked()
            borrowed = to_thread.current_default_thread_limiter().borrowed_tokens
            read_on.set()
        return int(borrowed)

    monkeypatch.setattr(failures, "read_failures", read_slowly)
    monkeypatch.setattr(failures, "_reader", FailureReader())
    assert anyio.run(ask_often) == 0


def test_an_unknown_group_and_a_wrong_time_are_refused(queue: Queue) -> None:
    assert queue.post("/failures/0123456789ab/replay").status == 404
    answer = queue.post("/failures/0123456789ab/replay", {"until": "yesterday"})
    assert (answer.status, answer.body["field"]) == (422, "until")


def test_a_viewer_may_read_but_not_replay(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> None:
    guarded = empty_queue(clean, tmp_path_factory, QM_API_KEYS=KEYS)
    assert guarded.get("/failures", X_API_KEY=VIEWER).status == 200
    assert guarded.post("/failures/0123456789ab/replay", {}, X_API_KEY=VIEWER).status == 403
