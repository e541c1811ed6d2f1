"""Leader and standby beats, as real processes that are killed, suspended and cut off."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pytest
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from dev.servers import Valkey
from queue_manager.beat.status import Leadership, leadership
from tests.broker.celery_process import CeleryProcess
from tests.broker.guard_app import client_app
from tests.eventually import eventually
from tests.pace import promptly

pytestmark = pytest.mark.crash

LOCK_KEY = "redbeat::lock"
SENT = "sent fast"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "redis") as running:
        yield running


@contextmanager
def connect(server: Valkey) -> Iterator[Redis]:
    with Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) as client:
        yield client


class Ticks:
    """Takes the ticks of one queue as they come and notes when."""

    def __init__(self, server: Valkey, queue: str) -> None:
        self.times: list[float] = []
        self._queue = queue
        self._client = Redis.from_url(server.url, retry=Retry(NoBackoff(), 0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._take)

    def _take(self) -> None:
        while not self._ended.is_set():
            try:
                if self._client.brpop([self._queue], timeout=0.2):
                    self.times.append(time.monotonic())
            except RedisError:
                time.sleep(0.05)

    def since(self, moment: float) -> list[float]:
        return [at for at in self.times if at > moment]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()


def beat(server: Valkey, name: str, directory: Path, *, schedule: str, lock: int) -> CeleryProcess:
    return CeleryProcess(
        *("beat", "--loglevel=info", f"--hostname={name}@test"),
        log=directory / f"{name}.log",
        broker_url=server.url,
        schedule=schedule,
        lock_timeout=str(lock),
    )


@contextmanager
def beats(server: Valkey, directory: Path, *names: str, schedule: str, lock: int) -> Iterator[list[CeleryProcess]]:
    """Start beats of these names and wait until one leads and the others stand by."""
    with ExitStack() as stack:
        started = [stack.enter_context(beat(server, name, directory, schedule=schedule, lock=lock)) for name in names]
        for process in started:
            eventually(lambda log=process: "leading" in log.log or "standing by" in log.log)
        yield started


def led_by(client: Redis, processes: list[CeleryProcess]) -> tuple[CeleryProcess, Leadership]:
    """Return the process that leads now."""
    leads = eventually(lambda: leadership(client, LOCK_KEY))
    return next(process for process in processes if process.pid == leads.pid), leads


@pytest.mark.smoke
def test_standby_takes_over_after_the_leader_dies_or_stops(
    server: Valkey, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    lock, loop = 6, 1  # the values of production: the gap is the figure that operators ask for
    with (
        connect(server) as client,
        Ticks(server, "fast") as ticks,
        beats(server, tmp_path, "a", "b", "c", schedule="fast=1", lock=lock) as processes,
    ):
        leader, first = led_by(client, processes)
        eventually(lambda: len(ticks.times) >= 2)
        standby = next(name for name, process in zip("abc", processes, strict=True) if process is not leader)
        with client_app(server.url) as app:
            asked = app.control.inspect([f"{standby}@test"], timeout=3)
            eventually(lambda: asked.ping() == {f"{standby}@test": {"ok": "pong"}})

        killed_at = time.monotonic()
        with promptly(lock + loop + 2):
            leader.kill()
            resumed_at = eventually(lambda: ticks.since(killed_at + 0.5))[0]
        figure(f"beat: ticks resumed {resumed_at - killed_at:.1f} s after the leader was killed")
        follower, second = led_by(client, processes)
        assert second.epoch == first.epoch + 1

        ended_at = time.monotonic()
        with promptly(4):
            follower.send(signal.SIGTERM)
            third = eventually(
                lambda: (found := leadership(client, LOCK_KEY)) and found.epoch == second.epoch + 1 and found
            )
        figure(f"beat: the next led {time.monotonic() - ended_at:.1f} s after SIGTERM")
        assert third.pid not in (first.pid, second.pid)


@pytest.mark.smoke
def test_leader_suspended_past_its_lock_sends_no_duplicate_tick(server: Valkey, tmp_path: Path) -> None:
    with (
        connect(server) as client,
        Ticks(server, "fast") as ticks,
        beats(server, tmp_path, "a", "b", schedule="fast=1", lock=3) as processes,
    ):
        leader, first = led_by(client, processes)
        eventually(lambda: leader.log.count(SENT) >= len(ticks.times) >= 2)  # between two ticks: it is logged after it

        leader.send(signal.SIGSTOP)
        eventually(lambda: (found := leadership(client, LOCK_KEY)) and found.pid != first.pid)
        taken_over_at = time.monotonic()
        eventually(lambda: len(ticks.since(taken_over_at)) >= 2)
        sent = leader.log.count(SENT)
        continued_at = time.monotonic()
        leader.send(signal.SIGCONT)

        leader.says("standing by: lock held by")
        eventually(lambda: len(ticks.since(continued_at)) >= 4)
        assert leader.log.count(SENT) == sent > 0  # the other one's ticks are the only ones
        assert leader.is_alive
        _, now = led_by(client, processes)
        assert now.epoch == first.epoch + 1


@pytest.mark.smoke
def test_beat_survives_the_loss_of_redis_and_of_its_data(server: Valkey, tmp_path: Path) -> None:
    with (
        connect(server) as client,
        Ticks(server, "fast") as fast,
        Ticks(server, "slow") as slow,
        beats(server, tmp_path, "a", schedule="fast=1 slow=4", lock=3) as [process],
    ):
        eventually(lambda: fast.times and slow.times)
        server.kill()
        process.says("is unreachable")
        eventually(lambda: time.monotonic() > slow.times[-1] + 4.5)  # a slow tick came due meanwhile
        server.start()
        restarted_at = time.monotonic()
        with promptly(3.5):
            at_once = eventually(lambda: fast.since(restarted_at) and slow.since(restarted_at))[0]
        assert sum(at < at_once for at in fast.since(restarted_at)) <= 2  # not one of its periods later

        server.kill()
        for file in server.directory.rglob("*.aof*"):
            file.unlink()
        server.start()
        restarted_at = time.monotonic()
        with promptly(5):
            eventually(lambda: fast.since(restarted_at))

        assert process.is_alive
        _, leads = led_by(client, [process])
        assert leads.epoch == 1  # Redis did lose its data, and counts anew
        assert client.smembers("redbeat::statics") == {b"fast", b"slow"}
        assert process.log.count("is unreachable") <= 2
