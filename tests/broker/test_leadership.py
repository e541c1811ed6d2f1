"""The leader's lock, script by script."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace

import pytest
from redis import Redis

from queue_manager.beat import leader_lock
from queue_manager.beat.leader_lock import LeaderLock, epoch_key, raise_epoch
from queue_manager.beat.status import SCHEDULE_KEY, leadership, next_runs
from queue_manager.broker.keys import SCHEDULE_PREFIX
from queue_manager.core.clock import EPOCH, minutes, seconds
from tests.eventually import eventually

KEY = "lock"
LEASE = seconds(60)
SHORT = seconds(0.2)


def test_one_of_two_takes_the_lock(client: Redis) -> None:
    first, second = LeaderLock(client, KEY, lease=LEASE), LeaderLock(client, KEY, lease=LEASE)

    first.acquire()
    holder = second.acquire()

    assert (first.epoch, second.epoch) == (1, 0)
    leads = leadership(client, KEY)
    assert leads is not None
    assert holder == f"{leads.host}:{leads.pid}"


def test_repeated_acquire_does_not_increment_the_epoch(client: Redis) -> None:
    lock = LeaderLock(client, KEY, lease=LEASE)
    lock.acquire()
    client.pexpire(KEY, 30_000)

    lock.acquire()

    assert lock.epoch == 1
    assert client.get(epoch_key(KEY)) == b"1"
    assert client.pttl(KEY) > 50_000


def test_each_take_over_increments_the_epoch(client: Redis) -> None:
    for expected in (1, 2, 3):
        lock = LeaderLock(client, KEY, lease=LEASE)
        lock.acquire()
        assert lock.epoch == expected
        lock.release()


def test_suspended_holder_detects_its_loss_and_does_not_disturb_the_next(client: Redis) -> None:
    overslept, follower = LeaderLock(client, KEY, lease=SHORT), LeaderLock(client, KEY, lease=LEASE)
    overslept.acquire()
    eventually(lambda: follower.acquire() and follower.epoch == 2)

    assert not overslept.is_fresh()
    assert not overslept.keep()
    overslept.release()

    assert overslept.epoch == 0
    assert follower.keep()


def test_expired_lock_is_lost_even_if_nobody_took_it(client: Redis) -> None:
    lock = LeaderLock(client, KEY, lease=SHORT)
    lock.acquire()
    eventually(lambda: not client.exists(KEY))

    assert not lock.keep()
    lock.acquire()

    assert lock.epoch == 2


def test_keep_extends_an_ageing_lock(client: Redis) -> None:
    lock = LeaderLock(client, KEY, lease=LEASE)
    lock.acquire()
    lock._renewed_at -= 40
    client.pexpire(KEY, 20_000)

    assert lock.keep()

    assert lock.is_fresh()
    assert client.pttl(KEY) > 50_000


def test_extension_whose_reply_took_most_of_the_lease_is_not_trusted(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = LeaderLock(client, KEY, lease=LEASE)
    lock.acquire()
    for took, is_trusted in ((50.0, True), (55.0, False)):
        moments = iter((0.0, took))
        monkeypatch.setattr(leader_lock, "time", SimpleNamespace(monotonic=partial(next, moments)))

        assert lock.extend() == is_trusted


def test_long_lease_is_extended_within_seconds_too(client: Redis) -> None:
    lock = LeaderLock(client, KEY, lease=LEASE)
    lock.acquire()
    client.flushall()  # it lost its data
    lock._renewed_at -= 3

    assert not lock.keep()


def test_leadership_has_the_leader_and_its_start(client: Redis) -> None:
    assert leadership(client, KEY) is None
    began = datetime.now(UTC)
    LeaderLock(client, KEY, lease=LEASE).acquire()

    leads = leadership(client, KEY)

    took = datetime.now(UTC) - began
    assert leads is not None
    assert abs(datetime.now(UTC) - leads.since) < took + seconds(1)
    assert LEASE - took - seconds(1) < leads.lease_left <= LEASE
    assert leads.epoch == 1


def test_an_entry_that_has_ended_or_is_not_scheduled_has_no_next_run(client: Redis) -> None:
    client.zadd(SCHEDULE_KEY, {f"{SCHEDULE_PREFIX}planned": 60, f"{SCHEDULE_PREFIX}ended": -1})

    assert next_runs(client, ["ended", "planned", "unknown"]) == {"planned": EPOCH + minutes(1)}


def test_holder_adopts_a_raised_epoch_after_redis_lost_its_data(client: Redis) -> None:
    lock = LeaderLock(client, KEY, lease=LEASE)
    lock.acquire()
    assert lock.epoch == 1  # Redis lost its data: others have seen epoch 7, an hour ago

    assert raise_epoch(client, KEY, known=7, age=minutes(60))
    assert lock.extend()

    assert lock.epoch == 8
    leads = leadership(client, KEY)
    assert leads is not None
    assert leads.epoch == 8
    assert not raise_epoch(client, KEY, known=7, age=minutes(60))  # a late refusal of epoch 1
    assert lock.extend()
    assert lock.epoch == 8


def test_raising_the_epoch_does_not_lift_an_older_leader_above_a_newer_one(client: Redis) -> None:
    older = LeaderLock(client, KEY, lease=LEASE)
    older.acquire()  # on a server that was cut off, while another led on its successor
    eventually(lambda: client.pttl(KEY) < 59_800)

    assert not raise_epoch(client, KEY, known=2, age=seconds(0.1))
    assert older.extend()
    assert older.epoch == 1


def test_raised_epoch_is_followed_by_the_next_take_over(client: Redis) -> None:
    lock, follower = LeaderLock(client, KEY, lease=LEASE), LeaderLock(client, KEY, lease=LEASE)
    lock.acquire()
    raise_epoch(client, KEY, known=7, age=minutes(60))
    lock.release()
    follower.acquire()

    assert follower.epoch == 9
    assert not lock.extend()
    assert lock.epoch == 0


def test_epoch_is_not_raised_without_a_holder(client: Redis) -> None:
    assert not raise_epoch(client, KEY, known=7, age=minutes(60))
    assert not client.exists(epoch_key(KEY))
