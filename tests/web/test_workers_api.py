"""The workers over HTTP: their recorded activity; also while a server is unavailable."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from pymongo.errors import AutoReconnect

from models import job_attempt
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.core.redis_client import connect
from queue_manager.operations.workers import MAX_WORKERS_SHOWN, read_workers
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import Activity, PoolProcess, RunningTask
from services import job_queues
from tests.any_jobs import MODULE, REPORT
from tests.real_servers import Servers
from tests.web.web_process import Web, shared_web

ROOM = "5f" * 12
ROOMS_TASK, JOBS_TASK = "tasks.support_snooze.unsnooze_room", "tasks.job_queues.run_queue"
MEGABYTE = 1_000_000


@pytest.fixture(scope="session")
def process(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return shared_web(tmp_path_factory, QM_JOBS="true", JOBS_IMPORTS=json.dumps([MODULE]))


@pytest.fixture
def client(clean: Servers) -> Iterator[redis.Redis]:
    with connect(clean.valkey.url) as client:
        yield client


def workers(process: Web) -> Any:
    answer = process.get("/api/workers")
    assert answer.status == 200, answer.text
    return answer.body


def activity(*processes: PoolProcess, **about: Any) -> Activity:
    busy = sum(len(one.running) for one in processes)
    known = {"pool": "prefork", "size": 4, "busy": busy, "done_per_minute": 0, "memory_bytes": 100 * MEGABYTE}
    return Activity(**{**known, **about}, processes=list(processes))


def running(*tasks: RunningTask, pid: int = 7) -> PoolProcess:
    return PoolProcess(pid=pid, memory_bytes=20 * MEGABYTE, running=list(tasks))


def task(name: str, id: str = "t-0", **about: Any) -> RunningTask:
    return RunningTask(**{"elapsed_ms": 0, **about}, task=name, id=id)


def record(name: str = "one@here", *processes: PoolProcess, **about: Any) -> None:
    worker_heartbeats.record(name, ["jobs", "scans"], activity=activity(*processes, **about))


def only_task(process: Web) -> Any:
    (worker,) = workers(process)["workers"]
    ((found,),) = (one["running"] for one in worker["processes"])
    return found


def test_a_worker_shows_its_pool_its_queues_and_its_memory(client: redis.Redis, process: Web) -> None:
    idle, unknown = PoolProcess(pid=8, memory_bytes=10 * MEGABYTE), PoolProcess(pid=9)
    worker_heartbeats.record(
        "one@here",
        ["jobs", "scans"],
        paused="MongoDB is unavailable",
        activity=activity(running(), idle, unknown, done_per_minute=120),
    )
    body = workers(process)
    (worker,) = body["workers"]
    known = {name: worker[name] for name in ("name", "pid", "queues", "release", "paused", "pool", "size", "busy")}
    assert known == {
        "name": "one@here",
        "pid": os.getpid(),
        "queues": ["jobs", "scans"],
        "release": worker_heartbeats.OWN_RELEASE,
        "paused": "MongoDB is unavailable",
        "pool": "prefork",
        "size": 4,
        "busy": 0,
    }
    assert (worker["done_per_minute"], worker["memory_bytes"]) == (120, 130 * MEGABYTE)
    assert [one["pid"] for one in worker["processes"]] == [7, 8, 9]
    assert body["count"] == 1


def test_the_process_of_a_pool_of_threads_counts_once_in_the_memory(client: redis.Redis, process: Web) -> None:
    record("one@here", running(pid=os.getpid()), pool="threads")
    (worker,) = workers(process)["workers"]
    assert worker["memory_bytes"] == 100 * MEGABYTE


def test_an_item_is_shown_with_its_page_and_since_when(client: redis.Redis, process: Web) -> None:
    record("one@here", running(task(ROOMS_TASK, item=ROOM, elapsed_ms=60_000)))
    found = only_task(process)
    since = datetime.fromisoformat(found.pop("since"))
    assert timedelta(seconds=59) < server_now() - since < timedelta(seconds=60 + 60)
    assert found == {
        "task": ROOMS_TASK,
        "task_id": "t-0",
        "tasks": 1,
        "system": "support-snooze",
        "item": ROOM,
        "job_name": None,
        "page": f"/rooms/{ROOM}",
    }


def test_a_batch_and_a_scan_lead_to_the_page_of_their_system(client: redis.Redis, process: Web) -> None:
    record("one@here", running(task(ROOMS_TASK, tasks=500)))
    found = only_task(process)
    assert (found["tasks"], found["item"], found["page"]) == (500, None, "/rooms")
    record("one@here", running(task("tasks.support_snooze.scan_expired_snoozes", id="s")))
    assert only_task(process)["page"] == "/rooms"


def test_a_task_of_another_program_has_no_page(client: redis.Redis, process: Web) -> None:
    record("one@here", running(task("billing.mail")))
    found = only_task(process)
    assert (found["task"], found["system"], found["page"]) == ("billing.mail", None, None)


def test_a_run_of_a_queue_shows_the_job_that_it_executes(client: redis.Redis, process: Web) -> None:
    record("one@here", running(task(JOBS_TASK, id="run-1", item=REPORT, elapsed_ms=9_000)))
    found = only_task(process)
    assert (found["job_name"], found["item"], found["page"]) == (REPORT, None, "/jobs")  # between two jobs
    job = job_queues.jobs.run(REPORT)
    assert job is not None
    now = server_now()
    assert job_attempt.start(job, token="run-1", now=now, until=now + seconds(30))
    found = only_task(process)
    assert (found["job_name"], found["item"], found["page"]) == (REPORT, str(job["_id"]), f"/jobs/{job['_id']}")
    assert datetime.fromisoformat(found["since"]) == now


def test_without_mongodb_a_run_of_a_queue_is_shown_without_its_job(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AutoReconnect("connection closed")

    monkeypatch.setattr(job_queues, "executing_by_task", fail)
    record("one@here", running(task(JOBS_TASK, id="run-1", item=REPORT)))
    (worker,) = read_workers().workers
    ((found,),) = (one.running for one in worker.processes)
    assert (found.job_name, found.item) == (REPORT, None)


def test_queues_without_a_worker_are_named(client: redis.Redis, process: Web) -> None:
    scans, rooms, jobs = (
        {"queue": "scans", "title": "Scans"},
        {"queue": "support-snooze", "title": "Rooms"},
        {"queue": "jobs", "title": "Jobs"},
    )
    assert workers(process)["queues_without_worker"] == [scans, rooms, jobs]
    record()
    assert workers(process)["queues_without_worker"] == [rooms]
    worker_heartbeats.record("older@there")  # its queues are unknown
    assert workers(process)["queues_without_worker"] == []


def test_a_worker_that_reports_nothing_that_can_be_read_is_listed(client: redis.Redis, process: Web) -> None:
    record()
    member = f"one@here {os.getpid()}"
    for report in ("", "1", "1 {", '1 {"pool": "prefork"}', "soon {}"):
        client.hset(worker_heartbeats.ACTIVITY_KEY, member, report)
        (worker,) = workers(process)["workers"]
        assert (worker["name"], worker["queues"], worker["pool"]) == ("one@here", ["jobs", "scans"], None)
        assert (worker["processes"], worker["memory_bytes"], worker["reported_at"]) == ([], None, None)


def test_the_list_is_bounded(client: redis.Redis, process: Web) -> None:
    record()
    beats: Any = client.zrange(worker_heartbeats.WORKERS_KEY, 0, -1, withscores=True)
    ((_, seen_at),) = beats
    client.zadd(worker_heartbeats.WORKERS_KEY, {f"w{number:03}@there 1": seen_at for number in range(250)})
    body = workers(process)
    assert (len(body["workers"]), body["count"]) == (MAX_WORKERS_SHOWN, 251)
    assert body["workers"][0]["name"] == "one@here"
