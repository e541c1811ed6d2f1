"""The contract of a Celery worker, on the batched transport."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from dev.servers import Valkey
from queue_manager.core.clock import seconds
from tests.broker.celery_process import CeleryProcess, lines
from tests.broker.guard_app import TRANSPORT_OPTIONS, client_app
from tests.broker.taking import body, held
from tests.eventually import eventually
from tests.pace import promptly

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "redis") as running:
        yield running


@pytest.fixture
def client(server: Valkey) -> Iterator[Redis]:
    with Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def app(server: Valkey) -> Iterator[Celery]:
    with client_app(server.url) as app:
        yield app


def worker(server: Valkey, log: Path, *options: str, **environment: str) -> CeleryProcess:
    return CeleryProcess(
        *("worker", "--queues=q", "--loglevel=info", f"--hostname={log.stem}@%h", *(options or ("--concurrency=2",))),
        log=log,
        broker_url=server.url,
        **environment,
    )


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet", "solo"])
def test_long_tasks_and_long_countdowns_are_executed_once(
    pool: str, server: Valkey, app: Celery, client: Redis, tmp_path: Path
) -> None:
    running, waiting = tmp_path / "running", tmp_path / "waiting"
    length = TRANSPORT_OPTIONS["visibility_timeout"] * 2

    with worker(server, tmp_path / "one.log", f"--pool={pool}", "--concurrency=2") as one:
        with worker(server, tmp_path / "two.log", f"--pool={pool}", "--concurrency=2") as two:
            one.says(" ready.")
            two.says(" ready.")
            app.send_task("guard_app.hold", [length, str(running)], queue="elsewhere")
            app.send_task("guard_app.hold", [0, str(waiting)], queue="elsewhere", countdown=length - 3)
            app.send_task("guard_app.hold", [0, str(waiting)], queue="elsewhere", countdown=length - 3)
            client.rename("elsewhere", "q")  # a worker takes all in one batch

            eventually(lambda: lines(running) and len(lines(waiting)) == 4)
            eventually(lambda: held(client) == (0, 0))
            assert lines(running) == ["started", "completed"]
            assert len(lines(waiting)) == 4


def test_messages_with_the_same_eta_are_executed_once(
    server: Valkey, app: Celery, client: Redis, tmp_path: Path
) -> None:
    diary, timeout = tmp_path / "diary", TRANSPORT_OPTIONS["visibility_timeout"]
    with (
        worker(server, tmp_path / "one.log", "--concurrency=1", "--prefetch-multiplier=1000") as one,
        worker(server, tmp_path / "two.log", "--queues=another", "--concurrency=1") as two,  # requeues what is overdue
    ):
        one.says(" ready.")
        two.says(" ready.")
        app.send_task("guard_app.hold", [timeout * 2, str(diary)], queue="q")
        eventually(lambda: lines(diary) == ["started"])
        at = datetime.now(UTC) + seconds(3)
        for _ in range(200):  # twenty turns of an event loop that would fire ten timers a second
            app.send_task("guard_app.hold", [0, str(diary)], queue="q", eta=at)
        eventually(lambda: lines(diary).count("completed") == 201)
        assert one.log.count("] received") == 201
        eventually(lambda: held(client) == (0, 0))


@pytest.mark.parametrize(
    ("pool", "shutdown"),
    [
        *((pool, "warm") for pool in ("prefork", "threads", "gevent", "eventlet", "solo")),
        ("prefork", "warm after a lost connection"),
        ("prefork", "soft"),
    ],
)
def test_task_that_ends_during_a_shutdown_is_executed_once(
    pool: str, shutdown: str, server: Valkey, app: Celery, client: Redis, tmp_path: Path
) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    length = TRANSPORT_OPTIONS["visibility_timeout"] * 2
    soft = json.dumps({"worker_soft_shutdown_timeout": length + 4 if shutdown == "soft" else 0})
    with worker(server, tmp_path / "one.log", f"--pool={pool}", "--concurrency=2", settings=soft) as one:
        one.says(" ready.")
        if shutdown == "warm after a lost connection":
            eventually(lambda: any(one["psub"] != "0" for one in client.client_list()))  # the last of its connections
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub")
            one.says("Connected to", times=2)
        if pool != "solo":
            app.send_task("guard_app.hold", [3, str(short)], queue="q")
        app.send_task("guard_app.hold", [length, str(long)], queue="q")
        eventually(lambda: lines(long) == ["started"] and (pool == "solo" or lines(short)))

        with worker(server, tmp_path / "two.log", f"--pool={pool}", "--concurrency=2") as two:
            one.send(signal.SIGQUIT if shutdown == "soft" else signal.SIGTERM)
            two.says(" ready.")
            if pool in ("prefork", "gevent", "eventlet") and shutdown != "soft":
                eventually(lambda: client.hlen("unacked") == 1, within=length - 6)  # the short one is acknowledged
                assert one.is_alive
            eventually(lambda: not one.is_alive)
            eventually(lambda: held(client) == (0, 0))

    assert lines(long) == ["started", "completed"]
    assert lines(short) == ([] if pool == "solo" else ["started", "completed"])
    assert client.llen("q") == 0


def test_solo_worker_takes_a_message_only_when_it_can_execute_it(
    server: Valkey, app: Celery, client: Redis, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    with worker(server, tmp_path / "one.log", "--pool=solo", "--prefetch-multiplier=9") as one:
        one.says(" ready.")
        for _ in range(3):
            app.send_task("guard_app.hold", [3, str(diary)], queue="elsewhere")
        client.rename("elsewhere", "q")
        eventually(lambda: lines(diary) == ["started"])
        assert (client.llen("q"), client.hlen("unacked")) == (2, 1)
        eventually(lambda: lines(diary).count("completed") == 3)


@pytest.mark.parametrize(("pool", "length"), [("prefork", TRANSPORT_OPTIONS["visibility_timeout"] * 2), ("threads", 5)])
def test_stopped_worker_completes_its_task_and_requeues_the_rest(
    pool: str, length: float, server: Valkey, app: Celery, client: Redis, tmp_path: Path
) -> None:
    running, diary = tmp_path / "running", tmp_path / "diary"
    with worker(server, tmp_path / "one.log", f"--pool={pool}", "--concurrency=1", "--prefetch-multiplier=9") as one:
        one.says(" ready.")
        app.send_task("guard_app.write", ["before", str(diary)], queue="q")
        app.send_task("guard_app.hold", [length, str(running)], queue="q")
        eventually(lambda: lines(running) == ["started"])
        for number in range(20):
            app.send_task("guard_app.write", [str(number), str(diary)], queue="q")
        eventually(lambda: client.llen("q") == 12)

        one.send(signal.SIGTERM)
        with worker(server, tmp_path / "two.log", "--concurrency=1", "--queues=other") as other:
            other.says(" ready.")  # it would put back what is overdue
            eventually(lambda: not one.is_alive)

    assert lines(running) == ["started", "completed"]
    assert held(client) == (0, 0)
    back = [body(message)[0][0] for message in reversed(client.lrange("q", 0, -1))]
    assert sorted(map(int, [*lines(diary)[1:], *back])) == [*range(20)]
    assert back == sorted(back, key=int)


def test_remote_control_and_broadcasts_work(server: Valkey, app: Celery, tmp_path: Path) -> None:
    with worker(server, tmp_path / "one.log") as one, worker(server, tmp_path / "two.log") as two:
        for each in (one, two):
            each.says(" ready.")

        assert len(app.control.inspect(timeout=5).ping()) == 2
        app.control.broadcast("pool_grow", arguments={"n": 1})
        eventually(lambda: prefetch_counts(app) == [12, 12])


def test_prefetch_count_of_many_threads_stays_within_what_kombu_knows(
    server: Valkey, app: Celery, tmp_path: Path
) -> None:
    settings = json.dumps({"worker_prefetch_multiplier": 1_500})
    with worker(server, tmp_path / "one.log", "--pool=threads", "--concurrency=50", settings=settings) as one:
        one.says(" ready.")
        assert prefetch_counts(app) == [30_000]
        assert "QoS: Disabled" not in one.log


def prefetch_counts(app: Celery) -> list[int]:
    return [figures["prefetch_count"] for figures in (app.control.inspect(timeout=2).stats() or {}).values()]


def test_queues_are_added_and_cancelled_while_it_runs(server: Valkey, app: Celery, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with worker(server, tmp_path / "one.log") as one:
        one.says(" ready.")
        app.control.add_consumer("added")
        app.send_task("guard_app.write", ["added", str(diary)], queue="added")
        eventually(lambda: lines(diary) == ["added"])

        app.control.cancel_consumer("q")
        one.says("Canceling queue q")
        app.send_task("guard_app.write", ["no", str(diary)], queue="q")
        app.send_task("guard_app.write", ["again", str(diary)], queue="added")
        eventually(lambda: lines(diary) == ["added", "again"])
        app.control.add_consumer("q")
        eventually(lambda: "no" in lines(diary))


@pytest.mark.smoke
def test_stock_worker_runs_alongside_ours(server: Valkey, app: Celery, client: Redis, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    stock = worker(server, tmp_path / "stock.log", settings='{"broker_transport": null}')
    with stock, worker(server, tmp_path / "ours.log") as ours:
        for each in (stock, ours):
            each.says(" ready.")
        for number in range(200):
            app.send_task("guard_app.write", [str(number), str(diary)], queue="q")

        eventually(lambda: sorted(map(int, lines(diary))) == [*range(200)])
        eventually(lambda: held(client) == (0, 0))
        for each in (stock, ours):
            assert "Task guard_app.write[" in each.log
            assert each.is_alive


def test_worker_gets_messages_immediately_after_an_idle_time(server: Valkey, app: Celery, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with worker(server, tmp_path / "one.log") as one:
        one.says(" ready.")
        with Redis.from_url(server.url) as client:
            # The server closes connections that are idle; after 4 s once, and not yet those that were made anew.
            client.config_set("timeout", 2)
            time.sleep(4)
            app.send_task("guard_app.write", ["late", str(diary)], queue="q")
            with promptly(5):
                eventually(lambda: lines(diary) == ["late"])
        assert one.log.count("Connection to broker lost") <= 1
