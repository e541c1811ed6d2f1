"""`lease.py` and the scripts of `queue_manager/leases` agree: in every state, every operation on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
import redis

from queue_manager import leases
from queue_manager.core.clock import milliseconds, minutes, seconds
from queue_manager.leases import Leases
from queue_manager.leases.scripts import END, START_ALONE, START_BATCH
from tests.protocol.lease import MAX_LOSSES, ItemLease, Place
from tests.real_servers import Servers

NAME = leases.name("room-1", datetime(2026, 1, 31, 9, 30, tzinfo=UTC))
SHORT, LONG = milliseconds(seconds(30)), milliseconds(minutes(10))


@dataclass(frozen=True)
class RealLease:
    """The lease of one item in Redis."""

    client: redis.Redis
    leases: Leases
    taken_until: int = 0
    """When the lease ends that a scan took, in ms."""

    def store(self, lease: ItemLease) -> RealLease:
        """Write a lease as its scripts would have left it."""
        now = self.now()
        ends = now - SHORT if lease.is_ended else now + SHORT  # sooner than a renewed one
        waiting, running, cooling, done, started, losses, _ = self.leases.keys
        with self.client.pipeline() as pipe:
            pipe.delete(*self.leases.keys)
            if lease.place == "waiting":
                pipe.zadd(waiting, {NAME: now - LONG})
            elif lease.place != "free":
                pipe.zadd(running, {NAME: ends})
            if lease.is_cooling:
                pipe.zadd(cooling, {NAME: now + LONG})
            if lease.is_done:
                pipe.zadd(done, {NAME: now + LONG})
            if lease.has_started:
                pipe.zadd(started, {NAME: now - SHORT})
            if lease.losses:
                pipe.hset(losses, NAME, f"{lease.losses}:{now}")
            pipe.execute()
        return replace(self, taken_until=ends if lease.place == "sending" else now - 2 * SHORT)

    def read(self) -> ItemLease:
        """Return the lease as it is."""
        waiting, running, cooling, done, started, losses, _ = self.leases.keys
        with self.client.pipeline() as pipe:
            for key in (waiting, running, cooling, done, started):
                pipe.zscore(key, NAME)
            pipe.hget(losses, NAME)
            waits, ends, cools, forgotten_at, start, lost = pipe.execute()
        assert waits is None or ends is None
        now = self.now()
        place: Place = "free"
        if waits is not None:
            place = "waiting"
        elif ends is not None:
            place = "sending" if ends <= self.taken_until else "running"
        return ItemLease(
            place=place,
            is_ended=ends is not None and ends <= now,
            is_cooling=cools is not None and cools > now,
            is_done=forgotten_at is not None and forgotten_at > now,
            has_started=start is not None,
            losses=0 if lost is None else min(int(lost.partition(":")[0]), MAX_LOSSES),
        )

    def now(self) -> int:
        whole, micro = self.client.time()
        return int(whole) * 1000 + int(micro) // 1000

    def take(self) -> RealLease:
        taken = self.leases.take([NAME])
        return replace(self, taken_until=taken.ends_ms) if taken.positions else self

    def start_in_batch(self) -> RealLease:
        START_BATCH(self.client, self.leases.keys, [LONG, NAME])
        return self

    def start_alone(self) -> RealLease:
        START_ALONE(self.client, self.leases.keys, [LONG, NAME, MAX_LOSSES])
        return self

    def end(self, *, is_done: bool) -> RealLease:
        END(self.client, self.leases.keys, [LONG, int(is_done), NAME])
        return self

    def after(self, act: Callable[[Leases], object]) -> RealLease:
        act(self.leases)
        return self


def start_in_batch(lease: ItemLease) -> ItemLease:
    return lease if lease.is_suspect else lease.started()


def start_alone(lease: ItemLease) -> ItemLease:
    lost = lease.with_loss()
    return lost.cooled_down() if lost.has_started and lost.losses >= MAX_LOSSES else lost.started()


OPERATIONS: dict[str, tuple[Callable[[ItemLease], ItemLease], Callable[[RealLease], RealLease]]] = {
    "take": (lambda lease: lease.taken() if lease.is_free else lease, RealLease.take),
    "dispatched": (
        ItemLease.dispatched,
        lambda real: real.after(lambda leases: leases.mark_dispatched([NAME], ends_ms=real.taken_until)),
    ),
    "free lost": (
        lambda lease: lease.freed() if lease.place == "waiting" else lease,
        lambda real: real.after(lambda leases: leases.free_lost(0)),
    ),
    "message is not lost": (lambda lease: lease, lambda real: real.after(lambda leases: leases.free_lost(1))),
    "renew": (ItemLease.renewed, lambda real: real.after(lambda leases: leases.renew([NAME]))),
    "sent again": (
        ItemLease.sent_again,
        lambda real: real.after(lambda leases: leases.mark_sent_again({NAME: seconds(0)})),
    ),
    "release": (ItemLease.released, lambda real: real.after(lambda leases: leases.release([NAME]))),
    "release for later": (
        lambda lease: lease.released(must_cool_down=True),
        lambda real: real.after(lambda leases: leases.release([NAME], cool_down=minutes(1))),
    ),
    "start in a batch": (start_in_batch, RealLease.start_in_batch),
    "start alone": (start_alone, RealLease.start_alone),
    "end": (lambda lease: lease.attempt_ended(is_done=False), lambda real: real.end(is_done=False)),
    "end, done": (lambda lease: lease.attempt_ended(is_done=True), lambda real: real.end(is_done=True)),
}
TIME: list[Callable[[ItemLease], ItemLease]] = [
    lambda lease: lease._replace(is_ended=lease.place in ("sending", "running")),
    lambda lease: lease._replace(is_cooling=False),
    lambda lease: lease._replace(is_done=False),
]


def reachable() -> list[ItemLease]:
    """Return every lease that operations and time make of a free one."""
    found = [ItemLease()]
    for lease in found:  # the list grows meanwhile
        following = [model(lease) for model, _ in OPERATIONS.values()] + [pass_time(lease) for pass_time in TIME]
        found += [one for one in dict.fromkeys(following) if one not in found]
    return found


@pytest.fixture
def real(clean: Servers) -> Iterator[RealLease]:
    with redis.Redis.from_url(clean.valkey.url, decode_responses=True) as client:
        yield RealLease(client, Leases("trial-end", minutes(1)))


def test_a_lease_is_read_as_it_was_stored(real: RealLease) -> None:
    for lease in reachable():
        assert real.store(lease).read() == lease


@pytest.mark.parametrize("operation", OPERATIONS)
def test_scripts_do_what_the_specification_says(real: RealLease, operation: str) -> None:
    model, act = OPERATIONS[operation]
    for lease in reachable():
        assert act(real.store(lease)).read() == model(lease), lease
