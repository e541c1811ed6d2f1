"""Celery workers that are shut down, restarted, killed and remotely controlled, on the batched transport."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, group, states, uuid
from redis import Redis

from dev.servers import Valkey
from tests.broker.celery_process import CeleryProcess, lines
from tests.broker.results_app import call, disconnect, results_app
from tests.broker.taking import held
from tests.eventually import eventually

pytestmark = pytest.mark.processes

TIMEOUT = 40  # seconds
COLD, WARM = signal.SIGQUIT, signal.SIGTERM

Start = Callable[..., CeleryProcess]


@pytest.fixture
def app(server: Valkey, client: Redis) -> Iterator[Celery]:
    with results_app(server.url) as app:
        yield app


@pytest.fixture
def start(server: Valkey, client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start workers; they are killed at the end."""
    started: list[CeleryProcess] = []

    def start(*options: str, name: str = "one", remap: bool = False, **settings: Any) -> CeleryProcess:
        if remap:
            monkeypatch.setenv("REMAP_SIGTERM", "SIGQUIT")
        worker = CeleryProcess(
            *("worker", "--queues=q", f"--hostname={name}@test", "--loglevel=info", *(options or ("--concurrency=2",))),
            log=tmp_path / f"{name}-{len(started)}.log",
            broker_url=server.url,
            app="tests.broker.results_app",
            settings=json.dumps(settings),
        )
        started.append(worker)
        worker.says(" ready.")
        # A worker subscribes to control commands a moment after it is ready; one sent before that is lost.
        eventually(lambda: subscribed() >= sum(one.is_alive for one in started))
        return worker

    def subscribed() -> int:
        return sum(one["psub"] != "0" for one in client.client_list())

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    return tmp_path / "diary"


def begin(app: Celery, diary: Path, seconds: float) -> Any:
    """Send a task that runs for so long; return its result once it has begun."""
    result = call(app, "hold", seconds, str(diary)).apply_async()
    eventually(lambda: result.state == states.STARTED)
    return result


def end(worker: CeleryProcess) -> int | None:
    """Wait until a worker has ended; return its exit code."""
    eventually(lambda: not worker.is_alive, within=TIMEOUT)
    return worker.exit_code


@pytest.mark.parametrize("times", [1, 3])
def test_warm_shutdown_completes_the_task(times: int, app: Celery, start: Start, client: Redis, diary: Path) -> None:
    worker = start()
    result = begin(app, diary, 3)

    for _ in range(times):
        worker.send(WARM)

    assert end(worker) == 0
    assert result.state == states.SUCCESS
    assert (client.llen("q"), held(client)) == (0, (0, 0))


@pytest.mark.parametrize(("remap", "number"), [(False, COLD), (True, WARM)])
def test_cold_shutdown_requeues_the_message(
    remap: bool, number: signal.Signals, app: Celery, start: Start, client: Redis, diary: Path
) -> None:
    worker = start(remap=remap)
    result = begin(app, diary, 20)

    worker.send(number)
    end(worker)

    assert "Cold shutdown" in worker.log
    assert result.state != states.SUCCESS
    assert (client.llen("q"), held(client)) == (1, (0, 0))


@pytest.mark.parametrize("numbers", [(WARM, COLD, COLD), (COLD, COLD)])
def test_repeated_signal_ends_the_worker_immediately(
    numbers: tuple[signal.Signals, ...], app: Celery, start: Start, diary: Path
) -> None:
    worker = start()
    begin(app, diary, 400)

    for count, number in enumerate(numbers):
        worker.send(number)
        if count < len(numbers) - 1:
            eventually(lambda number=number: ("Warm" if number == WARM else "Cold") + " shutdown" in worker.log)

    end(worker)


@pytest.mark.parametrize("remap", [False, True])
def test_soft_shutdown_completes_tasks_in_time_and_requeues_the_rest(
    remap: bool, app: Celery, start: Start, client: Redis, diary: Path
) -> None:
    worker = start(remap=remap, worker_soft_shutdown_timeout=6)
    short, long = begin(app, diary, 3), begin(app, diary, 12)

    worker.send(WARM if remap else COLD)
    end(worker)

    assert "Initiating Soft Shutdown" in worker.log
    assert short.state == states.SUCCESS
    assert (client.llen("q"), held(client)) == (1, (0, 0))
    start(name="two")
    assert long.get(timeout=TIMEOUT) == "completed"


def test_second_signal_ends_a_soft_shutdown(app: Celery, start: Start, diary: Path) -> None:
    worker = start(worker_soft_shutdown_timeout=300)
    begin(app, diary, 400)

    worker.send(COLD)
    worker.says("Initiating Soft Shutdown")
    worker.send(COLD)
    worker.says("Cold shutdown")
    worker.send(COLD)

    end(worker)


def test_soft_shutdown_of_an_idle_worker_requeues_messages_with_an_eta(
    app: Celery, start: Start, client: Redis
) -> None:
    worker = start(worker_soft_shutdown_timeout=2, worker_enable_soft_shutdown_on_idle=True)
    result = call(app, "add", 1, 1).apply_async(countdown=8)
    worker.says(f"{result.id}] received")

    worker.send(COLD)
    end(worker)

    assert "Initiating Soft Shutdown" in worker.log
    assert (client.llen("q"), held(client)) == (1, (0, 0))
    start(name="two")
    assert result.get(timeout=TIMEOUT) == 2


def test_task_that_ends_during_a_warm_shutdown_is_acknowledged_before_a_kill(
    app: Celery, start: Start, client: Redis, diary: Path
) -> None:
    worker = start()
    short = begin(app, diary, 3)
    begin(app, diary, 400)

    worker.send(WARM)
    assert short.get(timeout=TIMEOUT) == "completed"
    eventually(lambda: held(client) == (1, 1))
    worker.kill()

    assert client.llen("q") == 0


@pytest.mark.parametrize("by", ["pool", "orderly", "force"])
def test_restarted_worker_completes_the_task(by: str, app: Celery, start: Start, diary: Path) -> None:
    worker = start()
    running = begin(app, diary, 4)
    after = chain(call(app, "add", 1, 1), call(app, "add", 2))

    if by == "pool":
        app.control.pool_restart()
    elif by == "orderly":
        worker.send(WARM)
        end(worker)
        start()
    else:
        worker.kill()
        start()

    assert running.get(timeout=TIMEOUT) == "completed"
    assert after.apply_async().get(timeout=TIMEOUT) == 4


def test_other_workers_continue_when_one_is_killed(app: Celery, start: Start, diary: Path) -> None:
    workers = [start(name=name) for name in ("one", "two")]

    workers[0].kill()
    assert call(app, "hold", 1, str(diary)).apply_async().get(timeout=TIMEOUT) == "completed"
    workers[1].kill()
    waits = call(app, "hold", 1, str(diary)).apply_async()
    start(name="one")
    assert waits.get(timeout=TIMEOUT) == "completed"


def test_canvases_run_after_the_broker_was_away(app: Celery, server: Valkey, start: Start) -> None:
    worker = start()
    assert call(app, "add", 1, 1).apply_async().get(timeout=TIMEOUT) == 2

    server.kill()
    worker.says("Trying again in", times=2)
    server.start()
    worker.says("Connected to", times=2, within=TIMEOUT)
    disconnect(app)

    five = [call(app, "add", n, n, immutable=True) for n in range(5)]
    assert group(five, app=app).apply_async().get(timeout=TIMEOUT) == [0, 2, 4, 6, 8]
    twice = chain(group(five, app=app), call(app, "total"))
    assert twice.apply_async().get(timeout=TIMEOUT) == 20


def test_task_of_a_lost_process_is_retried_until_its_attempts_are_used(app: Celery, start: Start) -> None:
    worker = start(task_reject_on_worker_lost=True, task_retry_on_worker_lost=True)

    result = call(app, "die_again", "kill").apply_async()
    with pytest.raises(Exception, match="SIGKILL"):
        result.get(timeout=TIMEOUT)

    assert worker.log.count(f"{result.id}] received") == 3


@pytest.mark.parametrize("follows", ["chain", "callback"])
def test_already_completed_task_is_skipped_and_its_successor_sent(
    follows: str, app: Celery, start: Start, diary: Path
) -> None:
    start(worker_deduplicate_successful_tasks=True)
    first, second = call(app, "store_and_reject"), call(app, "write", str(diary))

    if follows == "chain":
        chain(first, second).apply_async()
    else:
        first.link(second)
        first.apply_async()

    eventually(lambda: lines(diary) == ["stored"])


def test_started_worker_learns_which_tasks_were_revoked(app: Celery, start: Start) -> None:
    start()
    start(name="two")
    revoked = uuid()
    app.control.revoke(revoked)
    second = start(name="three")

    def known() -> list[str]:
        replies = app.control.inspect(["three@test"], timeout=2).revoked() or {}
        return list(replies.get("three@test", []))

    eventually(lambda: revoked in known())
    assert "sync complete" in second.log


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_consumer_cancelled_right_after_it_was_added_is_cancelled(pool: str, app: Celery, start: Start) -> None:
    worker = start(f"--pool={pool}", "--concurrency=1")

    app.control.add_consumer("brief")
    app.control.cancel_consumer("brief")
    worker.says("Canceling queue brief")

    def queues() -> list[str]:
        replies = app.control.inspect(["one@test"], timeout=5).active_queues() or {}
        return [queue["name"] for queue in replies.get("one@test", [])]

    eventually(lambda: queues() == ["q"])


def test_cancelled_queue_stays_cancelled_after_a_lost_connection(app: Celery, start: Start, client: Redis) -> None:
    worker = start("--concurrency=1", "--queues=other")
    app.control.add_consumer("q", reply=True)
    assert call(app, "add", 1, 1).apply_async().get(timeout=TIMEOUT) == 2
    app.control.cancel_consumer("q", reply=True)
    worker.says("Canceling queue q")

    client.client_kill_filter(_type="normal", skipme=True)
    worker.says("Connected to", times=2, within=TIMEOUT)
    disconnect(app)

    call(app, "add", 1, 1).apply_async()
    assert call(app, "add", 2, 2, queue="other").apply_async().get(timeout=TIMEOUT) == 4
    assert client.llen("q") == 1


def test_control_shutdown_ends_the_worker_in_order(app: Celery, start: Start) -> None:
    worker = start()
    assert "celery:" in app.control.inspect(timeout=5).report()["one@test"]["ok"]

    app.control.shutdown(destination=["one@test"])

    assert end(worker) == 0


def test_pool_processes_may_be_spawned(app: Celery, start: Start, diary: Path) -> None:
    worker = start(worker_pool_start_method="spawn")

    with pytest.raises(Exception, match="TimeLimitExceeded"):
        call(app, "hold", 30, str(diary)).apply_async(time_limit=3).get(timeout=TIMEOUT)
    assert call(app, "add", 1, 1).apply_async().get(timeout=TIMEOUT) == 2
    assert "SpawnPoolWorker-" in worker.log


def test_autoscaled_pool_keeps_its_processes_through_short_gaps(
    app: Celery, start: Start, diary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOSCALE_KEEPALIVE", "30")
    start("--autoscale=2,1")

    def processes() -> set[int]:
        return set(app.control.inspect(timeout=5).stats()["one@test"]["pool"]["processes"])

    found = []
    for _ in range(3):
        group([call(app, "hold", 1, str(diary)) for _ in range(2)], app=app).apply_async().get(timeout=TIMEOUT)
        found.append(processes())

    assert len(found[0]) == 2
    assert found == [found[0]] * 3
