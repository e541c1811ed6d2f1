"""Workers and servers that are killed: nothing that the server has acknowledged is lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis, RedisError

from dev.servers import Valkey
from tests.broker.celery_process import CeleryProcess
from tests.broker.guard_app import client_app
from tests.eventually import eventually
from tests.pace import paced

pytestmark = pytest.mark.crash


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "redis") as running:
        yield running


class Work:
    """Numbered tasks that write their number, and the workers that do them."""

    def __init__(self, server: Valkey, directory: Path) -> None:
        self._server, self._directory = server, directory
        self.diary = directory / "diary"
        self._workers = 0
        self.sent = 0

    def worker(
        self, *, app: str = "tests.broker.guard_app", level: str = "warning", **environment: str
    ) -> CeleryProcess:
        self._workers += 1
        return CeleryProcess(
            *("worker", "--concurrency=2", "--prefetch-multiplier=32", f"--hostname=w{self._workers}@%h"),
            *("--queues=q", f"--loglevel={level}", "--without-gossip", "--without-mingle"),
            app=app,
            log=self._directory / f"worker-{self._workers}.log",
            broker_url=self._server.url,
            **environment,
        )

    def send(self, app: Celery, number: int) -> None:
        """Send so many more. Raises what the server does; `sent` were acknowledged by it."""
        with app.producer_pool.acquire(block=True) as producer:
            for _ in range(number):
                arguments = [str(self.sent), str(self.diary)]
                app.send_task("guard_app.write", arguments, queue="q", producer=producer, retry=False)
                self.sent += 1

    @property
    def done(self) -> Counter[int]:
        return Counter(map(int, self.diary.read_text().split())) if self.diary.exists() else Counter()

    def is_done(self) -> bool:
        missing = set(range(self.sent)) - self.done.keys()
        assert not missing, f"{len(missing)} of {self.sent} are missing, such as {sorted(missing)[:5]}"
        return True

    def nothing_is_left(self) -> bool:
        with Redis.from_url(self._server.url) as client:
            return (client.llen("q"), client.hlen("unacked"), client.zcard("unacked_index")) == (0, 0, 0)


@pytest.mark.smoke
@pytest.mark.parametrize("step", ["taken, none handed over", "handed over, none done", "done, none acknowledged"])
def test_worker_killed_at_a_step_loses_nothing(step: str, server: Valkey, tmp_path: Path) -> None:
    work = Work(server, tmp_path)
    with client_app(server.url) as app:
        work.send(app, 40)
    with work.worker(app="tests.broker.dying_app", dies=step) as dying:
        eventually(lambda: not dying.is_alive)
    with Redis.from_url(server.url) as client:
        assert client.hlen("unacked") > 0

    with work.worker():
        eventually(work.is_done)
        eventually(work.nothing_is_left)


def test_messages_of_a_killed_worker_are_requeued_in_time(
    server: Valkey, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    work, running = Work(server, tmp_path), tmp_path / "running"
    with client_app(server.url) as app, work.worker() as first:
        app.send_task("guard_app.hold", [60, str(running)], queue="q")
        app.send_task("guard_app.hold", [60, str(running)], queue="q")
        eventually(lambda: running.exists() and running.read_text().count("started") == 2)
        work.send(app, 20)  # held behind the two
        with Redis.from_url(server.url) as client:
            eventually(lambda: client.hlen("unacked") == 22)
            with work.worker(level="info") as second:
                second.says(" ready.")
                with paced() as pace:
                    first.kill()
                    killed_at = time.monotonic()
                    eventually(lambda: running.read_text().count("started") == 4)
                    took = time.monotonic() - killed_at
                # visibility_timeout 8 s, looked for every second; timers of kombu come up to a second late
                assert took < 8 + 1 + pace.allowed(3)
                figure(f"killed worker: its messages are started again after {took:.1f} s (timeout 8 s)")
                second.kill()


def storm(server: Valkey, directory: Path, *, tasks: int, kills: int) -> tuple[Work, int]:
    """Do `tasks` with two workers, one or the other of which is killed `kills` times; return how many ran twice."""
    work = Work(server, directory)
    with client_app(server.url) as app:
        work.send(app, tasks)
    with both(work) as workers:
        for kill in range(1, kills + 1):
            eventually(lambda kill=kill: len(work.done) > tasks * kill / (kills + 2), within=120)
            one = random.randrange(2)
            workers[one].kill()
            workers[one] = work.worker()
        eventually(work.is_done, within=120, every=0.2)
        eventually(work.nothing_is_left)
    return work, sum(work.done.values()) - tasks


@contextmanager
def both(work: Work) -> Iterator[list[CeleryProcess]]:
    workers = [work.worker(), work.worker()]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def test_repeated_kills_of_workers_lose_no_message(
    server: Valkey, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    _, twice = storm(server, tmp_path, tasks=2_000, kills=4)
    figure(f"2,000 tasks, 4 x kill -9: 0 lost, {twice} ran twice")


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_many_repeated_kills_of_workers_lose_no_message(
    server: Valkey, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    _, twice = storm(server, tmp_path, tasks=20_000, kills=15)
    figure(f"20,000 tasks, 15 x kill -9: 0 lost, {twice} ran twice")


def restart(server: Valkey, directory: Path, *, times: int) -> tuple[Work, Sequence[CeleryProcess]]:
    """Kill the server `times` times while two workers do what is sent, and start it again."""
    work = Work(server, directory)
    with both(work) as workers, client_app(server.url) as app:
        for turn in range(times):
            deadline = time.monotonic() + random.uniform(0.5, 2.5)
            while time.monotonic() < deadline:
                with suppress(RedisError, OperationalError):
                    work.send(app, 20)
            server.kill()
            with suppress(RedisError, OperationalError):
                work.send(app, 1)
            assert all(worker.is_alive for worker in workers), turn
            server.start()
        eventually(work.is_done, within=90, every=0.2)
        eventually(work.nothing_is_left)
        assert all(worker.is_alive for worker in workers)
        assert not any("Unrecoverable" in worker.log for worker in workers)
    return work, workers


def test_killed_server_stops_no_worker_and_loses_no_message(
    server: Valkey, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    work, _ = restart(server, tmp_path, times=4)
    figure(f"{work.sent} tasks, server killed 4 times: 0 lost, {sum(work.done.values()) - work.sent} ran twice")


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_server_killed_fifty_times_loses_no_message(
    server: Valkey, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    work, _ = restart(server, tmp_path, times=50)
    figure(f"{work.sent} tasks, server killed 50 times: 0 lost, {sum(work.done.values()) - work.sent} ran twice")


def test_full_server_is_emptied_by_a_worker(server: Valkey, tmp_path: Path) -> None:
    work = Work(server, tmp_path)
    with client_app(server.url) as app, Redis.from_url(server.url) as client:
        work.send(app, 500)
        client.config_set("maxmemory", 1)
        with work.worker() as worker:
            eventually(work.is_done)
            eventually(work.nothing_is_left)
            client.config_set("maxmemory", 0)
            work.send(app, 5)
            eventually(work.is_done)
            assert worker.is_alive
