"""Starts that never ended are counted, and what ended in any way is not: on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from queue_manager.transport.losses import MustPause
from real_servers import Servers

from queue_manager.core.clock import hours, minutes
from queue_manager.transport import losses

QUEUE = "support-snooze"
ONE, TWO, THREE = ("room-1", "2026-01-31T09:30:00Z"), ("room-2", "2026-01-31T09:30:00Z"), ("room-3", None)


@pytest.fixture
def client(clean: Servers) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(clean.valkey.url, decode_responses=True) as client:
        yield client


class ProcessDies(BaseException):
    """Leaves no process the time to record an end."""


def die(*items: losses.Args) -> None:
    """Start items, together if there are several, in a process that does not survive them."""
    with pytest.raises(ProcessDies):
        with losses.batch(QUEUE, items) if len(items) > 1 else losses.alone(QUEUE, *items):
            raise ProcessDies


def suspects(*items: losses.Args) -> set[int]:
    with losses.batch(QUEUE, items) as found:
        return found


def test_items_that_ended_or_failed_are_not_suspected(client: redis.Redis) -> None:
    assert suspects(ONE, TWO) == set()
    with pytest.raises(RuntimeError):
        with losses.batch(QUEUE, [ONE, TWO]):
            raise RuntimeError("failed as a whole")
    with pytest.raises(RuntimeError):
        with losses.alone(QUEUE, ONE):
            raise RuntimeError("failed")
    assert suspects(ONE, TWO) == set()
    assert client.keys("qm:started:*") + client.keys("qm:losses:*") == []


def test_items_of_a_lost_batch_are_to_be_executed_alone_until_each_has_ended(client: redis.Redis) -> None:
    die(ONE, TWO)
    assert suspects(THREE, ONE, TWO) == {1, 2}
    with losses.alone(QUEUE, ONE):
        pass
    assert suspects(THREE, ONE, TWO) == {2}


def test_another_due_time_is_another_item(client: redis.Redis) -> None:
    die(ONE, TWO)
    assert suspects(("room-1", "2026-02-01T00:00:00Z"), THREE) == set()


def test_each_start_after_one_that_never_ended_is_a_loss_and_the_second_pauses(client: redis.Redis) -> None:
    die(ONE)
    die(ONE)  # the first loss: it is tried again at once
    pauses = []
    for _ in range(8):
        with pytest.raises(MustPause) as raised:
            losses.alone(QUEUE, ONE).__enter__()
        pauses.append(raised.value.pause)
        assert suspects(ONE, TWO) == {0}  # after its pause, too, it is executed alone
        die(ONE)
    assert pauses[:4] == [minutes(1), minutes(2), minutes(4), minutes(8)]
    assert pauses[-1] == hours(1)
    assert losses.often(client, QUEUE) == {"room-1": 9}


def test_losses_are_forgotten_when_the_item_ends(client: redis.Redis) -> None:
    die(ONE)
    with losses.alone(QUEUE, ONE):
        assert client.hgetall(f"qm:losses:{QUEUE}") != {}
    die(ONE)
    with losses.alone(QUEUE, ONE):  # the first loss again
        pass
    assert losses.often(client, QUEUE) == {}


def test_starts_that_are_too_old_to_mean_anything_are_removed(client: redis.Redis) -> None:
    die(ONE, TWO)
    client.zadd(f"qm:started:{QUEUE}", {client.zrange(f"qm:started:{QUEUE}", 0, 0)[0]: 1_000})
    assert suspects(THREE) == set()
    assert client.zcard(f"qm:started:{QUEUE}") == 1


def test_full_server_records_starts_all_the_same(client: redis.Redis) -> None:
    client.config_set("maxmemory", 1)
    try:
        die(ONE, TWO)
        assert suspects(ONE, TWO) == {0, 1}
    finally:
        client.config_set("maxmemory", 0)


def test_without_redis_items_start_unrecorded(clean: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    away = losses._Recorder("redis://127.0.0.1:1/0")
    monkeypatch.setattr(losses, "_recorder", lambda: away)
    assert suspects(ONE, TWO) == set()
    with losses.alone(QUEUE, ONE):
        pass
