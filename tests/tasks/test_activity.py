"""The heartbeat of a worker, and the activity in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.concurrency.prefork import TaskPool
from pymongo.errors import AutoReconnect

from models.database import server_now
from queue_manager.batching.request import lost_requests
from queue_manager.broker.consumer import WORKER_EVENT_INTERVAL
from queue_manager.core.clock import minutes, seconds, to_iso
from queue_manager.core.errors import Unavailable
from queue_manager.core.redis_client import connect
from queue_manager.leases import Leases, name
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import KEYS, WORKERS_KEY, Activity, RunningTask
from queue_manager.worker import activity, heartbeat
from queue_manager.worker.activity import Sampler
from queue_manager.worker.heartbeat import Heartbeat
from services.due_work import DueWork
from tasks.item import ItemTask
from tasks.review_requests import create_review_request
from tasks.support_snooze import unsnooze_room
from tests.real_servers import Servers

PIDS = [2**22 + 1, 2**22 + 2, 2**22 + 3]  # of no process: Linux has none above 2**22


def test_a_worker_whose_pool_has_ended_reports_no_activity() -> None:
    sampler, pool = Sampler(), TaskPool(1, forking_enable=True, threads=False)
    sampler.watch(pool)
    pool.start()
    sampled = sampler.sample()
    assert sampled is not None
    assert (sampled.pool, sampled.size, len(sampled.processes)) == ("prefork", 1, 1)
    pool.terminate()
    assert sampler.sample() is None


class Worked:
    """What Celery knows of a worker with these processes, by a clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *processes: int) -> None:
        self.now, self.active_requests, self.all_total_count = 1_000.0, list[Any](), [0]
        monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now))
        monkeypatch.setattr(activity, "state", self)
        self._sampler = Sampler()
        self._sampler.watch(SimpleNamespace(info={"processes": processes}, num_processes=2))

    def begin(self, item: str, *, pid: int | None, ago: float) -> None:
        """Have a process begin with an item; without `pid` the item waits for one."""
        start = None if pid is None else self.now - ago
        fields = {"id": f"task-{item}", "name": unsnooze_room.name, "task": unsnooze_room, "kwargs": {}}
        self.active_requests.append(SimpleNamespace(args=(item, None), worker_pid=pid, time_start=start, **fields))
        self.all_total_count[0] += pid is not None

    def sample(self) -> Activity:
        found = self._sampler.sample()
        assert found is not None
        return found


def test_the_rate_of_a_worker_counts_the_tasks_that_ended_in_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worked(monkeypatch, PIDS[0])
    worker.begin("running", pid=PIDS[0], ago=1)
    rates = []
    for passed, ended in ((0, 50), (30, 100), (29, 50), (1, 0), (30, 200), (59, 0), (1, 0), (60, 7)):
        worker.now += passed
        worker.all_total_count[0] += ended
        rates.append(worker.sample().done_per_minute)
    assert rates == [0, 100, 150, 150, 250, 200, 0, 7]


def test_the_activity_of_processes_shows_batches_as_one_and_the_id_of_a_single_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worked(monkeypatch, *PIDS)
    for item, pid in (("a", PIDS[0]), ("b", PIDS[0]), ("c", PIDS[1]), ("waiting", None)):
        worker.begin(item, pid=pid, ago=2)
    sampled = worker.sample()
    assert (sampled.size, sampled.busy) == (2, 2)
    assert [process.pid for process in sampled.processes] == PIDS
    batch, single = RunningTask(tasks=2, **of_task("a")), RunningTask(item="c", tasks=1, **of_task("c"))
    assert [process.running for process in sampled.processes] == [[batch], [single], []]


def test_the_activity_of_a_pool_of_threads_shows_each_task_the_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worked(monkeypatch)
    for item, ago in (("a", 2), ("b", 5), ("c", 3)):
        worker.begin(item, pid=os.getpid(), ago=ago)
    sampled = worker.sample()
    assert sampled.busy == 3
    [process] = sampled.processes
    assert [(task.item, task.elapsed_ms) for task in process.running] == [("b", 5_000), ("c", 3_000), ("a", 2_000)]
    assert all(one and one > 1_000_000 for one in (process.memory_bytes, sampled.memory_bytes))


def of_task(item: str) -> dict[str, Any]:
    return {"task": unsnooze_room.name, "id": f"task-{item}", "elapsed_ms": 2_000}


def test_a_worker_of_which_one_heartbeat_is_lost_stays_online(clean: Servers) -> None:
    worker_heartbeats.record("one@here")
    with connect(clean.valkey.url) as client:
        (member,) = client.zrange(WORKERS_KEY, 0, -1)
        client.zincrby(WORKERS_KEY, -2 * WORKER_EVENT_INTERVAL * 1000, member)
        assert [worker.name for worker in worker_heartbeats.online(client)] == ["one@here"]
        client.zincrby(WORKERS_KEY, -2 * WORKER_EVENT_INTERVAL * 1000, member)
        assert worker_heartbeats.online(client) == []
    worker_heartbeats.remove("one@here")


def test_full_heartbeats_delete_what_lost_workers_have_reported(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = Activity(pool="prefork", size=1, busy=0, done_per_minute=0)
    names = ("lost@here", "one@here")
    with connect(clean.valkey.url) as client:
        for name in names:
            worker_heartbeats.record(name, activity=idle)
        client.zincrby(WORKERS_KEY, -60_000, f"lost@here {os.getpid()}")
        worker_heartbeats.record("one@here", activity=idle)  # nothing has changed: only the time
        assert client.zcard(WORKERS_KEY) == 2
        monkeypatch.setattr(worker_heartbeats, "FULL_INTERVAL", 0.0)
        worker_heartbeats.record("one@here", activity=idle)
        members = [client.zrange(KEYS[0], 0, -1), *(client.hkeys(key) for key in KEYS[1:])]
    for name in names:
        worker_heartbeats.remove(name)
    assert members == [[f"one@here {os.getpid()}"]] * 3


@pytest.mark.usefixtures("clean")
def test_an_error_of_one_system_is_logged_once_and_leaves_the_leases_of_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> DueWork:
        raise KeyError("address")

    def lines() -> list[Any]:
        return [record.msg for record in caplog.records]

    due = server_now() - minutes(1)
    lease, leases = name("room", due), Leases("support-snooze", seconds(1))
    leases.take([lease])
    tasks: list[tuple[ItemTask, str]] = [(create_review_request, "request"), (unsnooze_room, "room")]
    held = [SimpleNamespace(task=task, id=id, args=(id, to_iso(due)), kwargs={}) for task, id in tasks]
    monkeypatch.setattr(heartbeat, "state", SimpleNamespace(reserved_requests=held))
    beats = Heartbeat()

    with monkeypatch.context() as broken:
        broken.setattr(create_review_request, "work", fail)
        for _ in range(3):
            beats.renew_leases()
        (status,) = leases.statuses([lease])
        assert status.ends_at is not None
        assert status.ends_at - due > minutes(1) + seconds(10)  # more than the lease that a scan had taken
        (line,) = lines()
        assert (line["task"], line["error"]) == (create_review_request.name, "KeyError: 'address'")

    caplog.clear()
    with caplog.at_level("INFO"):
        beats.renew_leases()
    (line,) = lines()
    assert (line["event"], line["task"]) == ("The heartbeat works again", create_review_request.name)


def test_a_step_of_the_heartbeat_that_goes_on_to_fail_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise KeyError("address")

    beats = Heartbeat()
    for _ in range(2):
        with beats._contained("supervise"):
            fail()
    (record,) = caplog.records
    line: Any = record.msg
    assert (line["step"], line["error"]) == ("supervise", "KeyError: 'address'")
    with beats._contained("supervise"):
        pass
    with beats._contained("supervise"):
        fail()
    assert len(caplog.records) == 2  # it failed again


def redis_outage() -> Unavailable:
    error = Unavailable("Redis does not answer")
    error.__cause__ = redis.ConnectionError("refused")
    return error


@pytest.mark.parametrize("error", [AutoReconnect("connection closed"), redis_outage()], ids=["mongodb", "redis"])
def test_an_outage_ends_the_step_of_the_heartbeat_and_is_a_warning(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    beats, renewed = Heartbeat(), list[str]()
    with beats._contained("renew_leases"):
        with beats._contained("renew_leases", task="a"):
            fail()
        renewed.append("the leases of the next system")
    assert renewed == []
    (record,) = caplog.records
    line: Any = record.msg
    assert (record.levelname, line["step"], "task" in line) == ("WARNING", "renew_leases", False)


def test_items_of_lost_processes_are_released_when_mongodb_answers_again() -> None:
    errors: list[Exception] = [KeyError("address"), AutoReconnect("connection closed")]
    released: list[str] = []

    def lose(item: str, why: str) -> None:
        if errors:
            raise errors.pop(0)
        released.append(f"{item}: {why}")

    work = SimpleNamespace(lost=lose)
    task: Any = SimpleNamespace(work=lambda: work, item=lambda id, *_: id)
    lost_requests.clear()
    for id in ("malformed", "a", "b"):
        request: Any = SimpleNamespace(task=task, id=id, args=(), kwargs={})
        lost_requests.append((request, "its process died"))
    beats = Heartbeat()
    with pytest.raises(AutoReconnect):
        beats.release_lost()
    beats.release_lost()
    assert sorted(released) == ["a: its process died", "b: its process died"]
    assert not lost_requests


def test_all_leases_are_renewed_after_a_third_of_the_shorter_duration(
    monkeypatch: pytest.MonkeyPatch, change_settings: Callable[..., None]
) -> None:
    change_settings(QM_LEASE_SECONDS="600", JOBS_LEASE_SECONDS="30")
    renewals: list[list[str]] = []
    monkeypatch.setattr(unsnooze_room, "work", lambda: SimpleNamespace(renew=renewals.append))
    monkeypatch.setattr(unsnooze_room, "read_item", lambda _work, id, *_: id)
    held = [SimpleNamespace(task=unsnooze_room, id="a", args=(), kwargs={})]
    monkeypatch.setattr(heartbeat, "state", SimpleNamespace(reserved_requests=held))
    beats = Heartbeat()
    for _ in range(3):
        beats.renew_leases()
    assert renewals == [["a"]]
    beats._renewed_at -= 11
    beats.renew_leases()
    assert renewals == [["a"], ["a"]]
