"""A worker that is told to stop: tasks that end in time, and a task that does not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery.apps.worker import Worker
from celery.concurrency.base import BasePool
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import worker_shutting_down
from celery.worker import WorkController, state

from queue_manager.broker import keys
from queue_manager.core import shutdown
from queue_manager.worker.bounded_shutdown import BoundedShutdown
from queue_manager.worker.database_pause import Pings
from queue_manager.worker.heartbeat import Heartbeat
from tasks import app
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.commands import environment
from tests.eventually import eventually
from tests.real_servers import Servers

EMBEDDED = """
import sys
from threading import Timer, enumerate
from celery.contrib.testing.worker import start_worker
from celery.worker import state
from queue_manager.core import shutdown
from tasks import app

pool, how = sys.argv[1:]
with start_worker(app, pool=pool, perform_ping_check=False, shutdown_timeout=60) as worker:
    if how == "warm":
        state.should_stop = 0
        worker.blueprint.shutdown_complete.wait()
for timer in enumerate():
    if isinstance(timer, Timer):
        timer.join()
print("begun" if shutdown.has_begun() else "not begun")
"""
QUEUE, TASK = "batches", "tests.tasks.batch_app.touch"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def client(clean: Servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(clean.valkey.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def start(clean: Servers, tmp_path: Path) -> Iterator[Callable[..., CeleryProcess]]:
    processes: list[CeleryProcess] = []

    def start_one(**env: str) -> CeleryProcess:
        process = worker(
            tmp_path / f"worker{len(processes)}.log",
            *("--queues", QUEUE, "--prefetch-multiplier", "8", "--hostname", f"w{len(processes)}@h"),
            app="tests.tasks.batch_app",
            env={"PYTHONPATH": str(ROOT), **env},
        ).start()
        processes.append(process)
        return process

    yield start_one
    for process in processes:
        process.kill()


def calls(client: redis.Redis) -> list[str]:
    return [names[0] for what, names in map(json.loads, client.lrange("calls", 0, -1)) if what == "one"]


def is_executed(name: str) -> bool:
    """Return True once the first worker knows that the task began: when it shuts down, Celery forgets the others."""
    with app.connection_for_write() as connection:
        active = app.control.inspect(["w0@h"], connection=connection).active() or {}
    return name in [one["id"] for one in active.get("w0@h", [])]


def send(*names: str) -> None:
    for name in names:
        app.send_task(TASK, [name], task_id=name, queue=QUEUE)


@pytest.mark.crash
@pytest.mark.smoke
def test_shutdown_completes_tasks_that_end_in_time_and_requeues_the_others(
    start: Callable[..., CeleryProcess], client: redis.Redis
) -> None:
    one = start(QM_SHUTDOWN_SECONDS="4")
    for name in ("hold-1", "holdshort-1"):  # one by one: together they could be one batch, in one process
        send(name)
        eventually(lambda name=name: is_executed(name))
    send("ok-1", "ok-2")  # they wait in the worker
    eventually(lambda: client.hlen(keys.UNACKED) == 4)

    one.signal(signal.SIGTERM)
    eventually(lambda: "Warm shutdown" in one.log)
    one.signal(signal.SIGTERM)
    client.set("goshort", 1)

    eventually(lambda: not one.is_alive())
    assert "Tasks are still running" in one.log
    assert client.hlen(keys.UNACKED) == 0
    assert client.llen(QUEUE) == 3
    client.set("go", 1)
    start()
    eventually(lambda: client.llen(QUEUE) + client.hlen(keys.UNACKED) == 0)
    assert sorted(calls(client)).count("hold-1") == 2
    assert calls(client).count("holdshort-1") == 1


@pytest.mark.crash
def test_worker_whose_tasks_end_in_time_does_not_wait_for_the_limit(
    start: Callable[..., CeleryProcess], client: redis.Redis
) -> None:
    one = start(QM_SHUTDOWN_SECONDS="3600")
    send("hold-1")
    eventually(lambda: is_executed("hold-1"))

    one.signal(signal.SIGTERM)
    client.set("go", 1)

    eventually(lambda: not one.is_alive())
    assert one.exit_code() == 0
    assert (client.llen(QUEUE), client.hlen(keys.UNACKED)) == (0, 0)
    assert "put back" not in one.log


@pytest.mark.crash
def test_remote_shutdown_is_bounded(start: Callable[..., CeleryProcess], client: redis.Redis) -> None:
    one = start(QM_SHUTDOWN_SECONDS="4")
    send("hold-1")
    eventually(lambda: is_executed("hold-1"))

    with app.connection_for_write() as connection:
        app.control.shutdown(connection=connection)

    eventually(lambda: not one.is_alive())
    assert "Tasks are still running" in one.log
    assert (client.llen(QUEUE), client.hlen(keys.UNACKED)) == (1, 0)


@pytest.mark.processes
@pytest.mark.parametrize(("pool", "how"), [("solo", "cold"), ("prefork", "warm"), ("threads", "warm")])
def test_a_program_that_embeds_a_worker_continues_after_it(clean: Servers, pool: str, how: str) -> None:
    command = [sys.executable, "-c", EMBEDDED, pool, how]
    done = subprocess.run(command, env=environment(QM_SHUTDOWN_SECONDS="30"), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "not begun\n"), done.stderr


@pytest.fixture
def new_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shutdown that has not begun, of which no other test hears."""
    monkeypatch.setattr(shutdown, "_begun", None)
    monkeypatch.setattr(state, "should_terminate", None)


def send_signal(how: str) -> None:
    worker_shutting_down.send(sender="worker@here", sig="SIGTERM", how=how, exitcode=0)


@pytest.mark.usefixtures("new_shutdown")
@pytest.mark.parametrize("signals", [[], ["Warm"], ["Warm", "Warm"]])
def test_every_warm_stop_of_a_prefork_worker_starts_one_limit(signals: list[str]) -> None:
    step, worker = prepared(PreforkPool)
    for how in signals:
        send_signal(how)
        assert shutdown.has_begun()
    after_signal = step._limit
    step.close(worker)
    assert shutdown.has_begun()
    assert step._limit is not None
    assert step._limit is (after_signal or step._limit)
    step._limit.cancel()


@pytest.mark.usefixtures("new_shutdown")
def test_tasks_of_a_pool_of_threads_are_not_stopped() -> None:
    step, worker = prepared(ThreadPool)
    send_signal("Warm")
    step.close(worker)
    assert shutdown.has_begun()
    assert step._limit is None


@pytest.mark.usefixtures("new_shutdown")
def test_a_cold_stop_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    step, worker = prepared(PreforkPool)
    send_signal("Cold")
    monkeypatch.setattr(state, "should_terminate", 0)  # Celery's exit code
    step.close(worker)
    assert step._limit is None


@pytest.mark.usefixtures("new_shutdown")
def test_an_embedded_worker_has_no_limit_that_would_end_its_program() -> None:
    step, worker = prepared(PreforkPool, kind=WorkController)
    step.close(worker)
    assert shutdown.has_begun()
    assert step._limit is None


@pytest.mark.parametrize(("kind", "name"), [(Heartbeat, "heartbeat"), (Pings, "mongodb-pings")])
def test_a_second_worker_of_a_process_has_its_threads(kind: type[Heartbeat | Pings], name: str) -> None:
    def running() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == name and thread not in earlier]

    earlier = threading.enumerate()  # one of another test may still be about to end
    one = kind()
    try:
        for _ in range(2):
            one.start()
            one.start()  # by a consumer that restarted
            assert len(running()) == 1
            one.stop()
            eventually(lambda: running() == [])
    finally:
        one.stop()


def test_a_second_worker_of_a_process_is_not_paused_for_an_earlier_outage() -> None:
    pings = Pings()
    pings.start()
    pings.problem = "MongoDB does not answer"
    pings.stop()
    assert pings.problem is None


def prepared(pool: type[BasePool], *, kind: type[WorkController] = Worker) -> tuple[BoundedShutdown, Any]:
    """Return the step of a worker that has such a pool, before it starts."""
    worker: Any = object.__new__(kind)
    worker.blueprint = SimpleNamespace()
    worker.pool = SimpleNamespace(uses_semaphore=pool.uses_semaphore)
    step = BoundedShutdown(worker)
    step.create(worker)
    return step, worker
