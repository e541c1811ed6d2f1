"""The lease of dispatched items, kept in Redis: while an item is in flight, scans do not dispatch it again.

A lease is named by an item's id and its due time, so a new due time is a new lease. Each system has sorted sets of
these names, scored in milliseconds:

    waiting  dispatched: in the broker, or with a worker until its ETA → when it was dispatched, or the ETA of its task
    running  being sent, or received by a worker → when the lease ends; the worker renews it
    cooling  its last attempt failed, and no scan has taken it since → when it may be dispatched again
    done     ended a moment ago → until when a scan that read it before does not dispatch it again
    started  an attempt runs → when it started
    flagged  ids of documents that we flagged as dispatched → until when their flag counts as ours

An item that started and never ended may have killed its process, so it is executed alone from then on. `losses` counts
how often in a row that happened.

Guarantee: a lease is an optimization and protects no data. If Redis loses it, the item is dispatched again, and the
conditional write of the item decides. Renewing, ending and releasing work while the server's memory is full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import uuid4

import redis

from queue_manager.core.clock import from_unix_ms, hours, milliseconds, minutes, seconds, unix_ms
from queue_manager.core.errors import Unavailable
from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import BestEffortClient, Script, describe_outage, make_client, time_of
from queue_manager.core.retry import doubling
from queue_manager.core.settings import settings
from queue_manager.leases.scripts import (
    DISPATCHED,
    END,
    END_EARLY,
    FREE_LOST,
    HOLD_SCAN_LOCK,
    HOLD_UNKNOWN,
    MAX_ARGUMENTS,
    RELEASE,
    RELEASE_SCAN_LOCK,
    RENEW,
    RESERVE,
    RETENTION_MS,
    SENT_AGAIN,
    START_ALONE,
    START_BATCH,
    TAKE,
    Sets,
)
from queue_manager.leases.state import LeaseCounts, LeaseDetail, LeaseStatus, step_of

DONE_FOR = seconds(5)
MAX_SCAN_LOCK = seconds(15)
# At most, until items are sent: what a dead scan has taken waits no longer, and a slow broker has time for each.
SENDING_LEASE, SENDING_TIME = seconds(15), seconds(0.005)
MIN_COOL_DOWN, MAX_COOL_DOWN = minutes(1), hours(1)
MAX_LOSSES = 2  # in a row, after which an item cools down before it starts again
SAMPLED_PARTS = 10
OFTEN_LOST = 3  # losses in a row after which health names the item


def name(id: str, due_at: datetime | None) -> str:
    """Return the name of a lease: the id as text, and the due time in milliseconds."""
    if not id.isascii():
        id = id.encode("utf-8", "backslashreplace").decode()  # UTF-8 has no unpaired surrogates
    return f"{id}@{'' if due_at is None else unix_ms(due_at)}"


def id_of(name: str) -> str:
    """Return the id that the name of a lease begins with."""
    return name.rpartition("@")[0]


def due_ms(name: str) -> int | None:
    """Return the due time that the name of a lease ends with, in Unix ms."""
    digits = name.rpartition("@")[2]
    return int(digits) if digits else None


class MustCoolDown(Exception):
    """The process of the item was lost too often in a row to start it now."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.cool_down: timedelta = doubling(MIN_COOL_DOWN, losses - MAX_LOSSES, cap=MAX_COOL_DOWN)
        super().__init__(f"its process was lost {losses} times in a row; it cools down for {self.cool_down.seconds} s")


@dataclass(kw_only=True)
class Attempts:
    """Attempts in progress, as one batch or alone."""

    suspects: set[int] = field(default_factory=set)
    """Positions of the items that must be executed alone instead."""
    done: set[str] = field(default_factory=set)
    """Names of items that succeeded: the caller adds them."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The result of `take`: the positions of the names taken, and when their leases end."""

    positions: list[int]
    ends_ms: int


@dataclass(frozen=True)
class Leases:
    """The leases of one system. Methods raise `Unavailable` when Redis does not answer, unless they say otherwise."""

    system: str
    lease: timedelta = timedelta(minutes=1)

    # Dispatch

    def take(self, names: Sequence[str], *, is_forced: bool = False, flagged_for: timedelta = timedelta(0)) -> Taken:
        """Take the leases that are free, to send their items now; with `is_forced`, also those that are cooling.

        The flag of a document that was taken counts as ours for `flagged_for`, even if its due time changes.
        """
        sending_ms = milliseconds(min(self.lease, SENDING_LEASE + len(names) * SENDING_TIME))
        positions, ends = list[int](), 0
        for first in range(0, len(names), MAX_ARGUMENTS):
            some = names[first : first + MAX_ARGUMENTS]
            ends, *found = self._run(TAKE, sending_ms, int(is_forced), milliseconds(flagged_for), *some)
            positions += [first + position - 1 for position in found]
        return Taken(positions=positions, ends_ms=ends)

    @contextmanager
    def scan_lock(self) -> Iterator[Callable[[], bool]]:
        """Hold the scan lock of the system while the yielded function returns True; call it once per batch.

        The lock lasts as long as a lease, but at most 15 s, so that the next scan does not wait longer if the process
        dies. A call renews it after a third of this time. If it cannot be released, because Redis does not answer, the
        next scan in this process takes it over.
        """
        held_for = min(self.lease, MAX_SCAN_LOCK)
        key, renew_at = f"qm:lease:{self.system}:scan", 0.0
        token = _unreleased.pop(key, uuid4().hex)

        def holds_lock() -> bool:
            nonlocal renew_at
            now = time.monotonic()
            if now < renew_at:
                return True
            with lease_server() as client:
                is_held = bool(HOLD_SCAN_LOCK(client, [key], [token, milliseconds(held_for)]))
            renew_at = now + held_for.total_seconds() / 3 if is_held else 0
            return is_held

        try:
            yield holds_lock
        finally:
            try:
                with lease_server() as client:
                    RELEASE_SCAN_LOCK(client, [key], [token])
            except Unavailable:  # not raised: of a generator that is closed, Python would print it outside of the log
                _unreleased[key] = token

    def mark_dispatched(self, names: Sequence[str], *, ends_ms: int) -> None:
        """Mark items taken until `ends_ms` as sent: they wait for a worker, for any time."""
        self._each(DISPATCHED, names, ends_ms)

    def are_waiting(self) -> bool:
        """Return True if dispatched items wait for a worker."""
        with lease_server() as client:
            return bool(client.zcard(self.keys.waiting))

    def next_slot(self) -> datetime | None:
        """Return the earliest time at which `max_rate` allows the next item."""
        with lease_server() as client:
            at = client.get(self._slot_key)
        return None if at is None else from_unix_ms(float(at))

    def reserve(self, due_at: Sequence[datetime], *, interval: timedelta, now: datetime) -> list[datetime]:
        """Reserve a time for each item, not before it is due and `interval` after the previous one."""
        now_ms, *wanted_ms = [unix_ms(at) for at in (now, *due_at)]
        with lease_server() as client:
            times = RESERVE(client, [self._slot_key], [now_ms, interval / timedelta(milliseconds=1), *wanted_ms])
        return [from_unix_ms(at) for at in times]

    def hold_unknown(self, names: Sequence[str]) -> None:
        """Hold for one lease the unknown items whose flag is not ours: another program may be working on them."""
        self._each(HOLD_UNKNOWN, names, self._lease_ms)

    def free_lost(self, messages: int) -> int:
        """Free the waiting items that exceed the `messages` in the broker, oldest first; return how many."""
        freed = 0
        while some := int(self._run(FREE_LOST, messages, self._lease_ms)):
            freed += some
        return freed

    # Holding

    def renew(self, names: Sequence[str], *, wait: timedelta = timedelta(0)) -> None:
        """Extend held leases to one lease from now, or from the end of `wait`."""
        self._each(RENEW, names, self._lease_ms + milliseconds(wait))

    def mark_sent_again(self, waits: Mapping[str, timedelta]) -> None:
        """Mark held items as sent with an ETA after the wait of each: they then wait for a worker, for any time."""
        pairs = [part for name, wait in waits.items() for part in (milliseconds(wait), name)]
        self._each(SENT_AGAIN, pairs)  # which keeps pairs together, because `MAX_ARGUMENTS` is even

    def end_early(self, names: Sequence[str]) -> None:
        """End the leases of items whose ETA has not come."""
        self._each(END_EARLY, names, self._lease_ms)

    def release(self, names: Sequence[str], *, cool_down: timedelta = timedelta(0)) -> None:
        """Release leases; no scan takes them before `cool_down` is over."""
        self._each(RELEASE, names, milliseconds(cool_down))

    # Attempts

    @contextmanager
    def batch(self, names: Sequence[str]) -> Iterator[Attempts]:
        """Record a batch of attempts while the block runs. Best effort: without Redis items start unrecorded."""
        found = self._record(START_BATCH, self._lease_ms, *names) if names else None
        attempts = Attempts(suspects={position - 1 for position in found or ()})
        mine = [name for position, name in enumerate(names) if position not in attempts.suspects]
        with self._ending(mine, attempts):
            yield attempts

    @contextmanager
    def alone(self, name: str) -> Iterator[Attempts]:
        """Record one attempt while the block runs. Best effort like `batch`. Raises MustCoolDown."""
        if losses := self._record(START_ALONE, self._lease_ms, name, MAX_LOSSES):
            raise MustCoolDown(losses)
        attempts = Attempts()
        with self._ending([name], attempts):
            yield attempts

    @contextmanager
    def _ending(self, names: Sequence[str], attempts: Attempts) -> Iterator[None]:
        def end() -> None:
            if names:
                done = [name for name in names if name in attempts.done]
                others = [name for name in names if name not in attempts.done]
                self._record(END, milliseconds(DONE_FOR), len(done), *done, *others)

        try:
            yield
        except Exception:
            end()
            raise
        # SystemExit and the like are not caught: an item that ends its process is lost.
        end()

    # Reading

    def statuses(self, names: Sequence[str]) -> list[LeaseStatus]:
        """Return the lease of each item."""
        found: list[LeaseStatus] = []
        for first in range(0, len(names), MAX_ARGUMENTS):
            some = names[first : first + MAX_ARGUMENTS]
            with lease_server() as client, client.pipeline(transaction=False) as pipe:
                for key in (self.keys.waiting, self.keys.running, self.keys.cooling, self.keys.done):
                    pipe.zmscore(key, list(some))
                pipe.time()
                *scores, time_ = pipe.execute()
            now = unix_ms(time_of(time_))
            found += [
                LeaseStatus.of(*step_of(*of_one, now=now), lease=self._lease_ms) for of_one in zip(*scores, strict=True)
            ]
        return found

    def detail(self, name: str) -> LeaseDetail:
        """Return all that is known about the lease of one item."""
        with lease_server() as client, client.pipeline(transaction=False) as pipe:
            for key in (self.keys.waiting, self.keys.running, self.keys.cooling, self.keys.done, self.keys.started):
                pipe.zscore(key, name)
            pipe.zrank(self.keys.waiting, name)
            pipe.hget(self.keys.losses, name)
            pipe.time()
            *scores, rank, lost, time_ = pipe.execute()
        step, at = step_of(*scores, now=unix_ms(time_of(time_)))
        losses = 0 if lost is None else int(lost.split(b":")[0])
        known_at = None if at is None or step == "ended" else from_unix_ms(scores[-1] if step == "started" else at)
        return LeaseDetail(step=step, at=known_at, ahead_of_it=rank or 0, losses=losses)

    def stats(self, *, late: timedelta = timedelta(0)) -> LeaseCounts:
        """Count what is in flight, what has failed, and the leases that ended without a result before `late`."""
        with lease_server() as client, client.pipeline(transaction=False) as pipe:
            now = unix_ms(time_of(client.time()))
            pipe.zcard(self.keys.waiting)
            pipe.zcount(self.keys.running, f"({now}", "+inf")
            pipe.zcard(self.keys.cooling)
            pipe.zcount(self.keys.running, "-inf", now - milliseconds(late))
            waiting, running, cooling, ended = pipe.execute()
        return LeaseCounts(in_progress=waiting + running, cooling=cooling, ended=ended)

    def ended(self, *, before: timedelta, limit: int) -> list[str]:
        """Return names whose lease ended without a result over `before` ago, oldest first, or an even sample."""
        with lease_server() as client:
            until = unix_ms(time_of(client.time())) - milliseconds(before)
            return self._some(client, self.keys.running, until, limit)

    def candidates(self, state: Literal["in-progress", "stuck"], *, limit: int) -> set[str] | None:
        """Return all names in a state, and possibly others, which `statuses` tells apart; `None` if over `limit`.

        Read in slices, because other clients wait meanwhile: a lease that changes its set may be missing.
        """
        keys, names = self.keys, set[str]()
        with lease_server() as client:
            now = unix_ms(time_of(client.time()))
            for key in (keys.running,) if state == "stuck" else (keys.waiting, keys.running, keys.done):
                for one, score in client.zscan_iter(key, count=MAX_ARGUMENTS):
                    if key == keys.waiting or (score > now) == (state == "in-progress"):
                        names.add(one.decode())
                        if len(names) > limit:
                            return None
        return names

    def cooling(self, *, limit: int) -> list[str]:
        """Return names of items that failed and were not taken since, the next ones first, or an even sample."""
        with lease_server() as client:
            return self._some(client, self.keys.cooling, "+inf", limit)

    def max_time_failed(self) -> timedelta:
        """Return for how long at most the items have been failed that were not taken since; 0 if there are none."""
        with lease_server() as client, client.pipeline(transaction=False) as pipe:
            pipe.zrange(self.keys.cooling, 0, 0, withscores=True)
            pipe.time()
            first, time_ = pipe.execute()
        return time_of(time_) - from_unix_ms(first[0][1]) + MAX_COOL_DOWN if first else timedelta(0)

    @staticmethod
    def _some(client: redis.Redis, key: str, until: Any, limit: int) -> list[str]:
        """Return all names with scores up to this, lowest first, or equally many from each part of them."""
        found: Any = client.zrange(key, "-inf", until, byscore=True, offset=0, num=limit + 1)
        if len(found) > limit:
            total: Any = client.zcount(key, "-inf", until)
            parts, found = min(SAMPLED_PARTS, limit), []
            for begin in (part * total // parts for part in range(parts)):  # ranks: an offset reads all before
                found += client.zrange(key, begin, begin + limit // parts - 1)
        return [one.decode() for one in found]

    def often_lost(self, *, now: datetime) -> Mapping[str, datetime]:
        """Return, by id, items whose process was often lost in a row, the last time in the day before the time `now`.

        The value is the end of its cool-down or lease if no scan has taken it since, and `now` while it is in progress.
        """
        with lease_server() as client:
            losses: Any = client.hgetall(self.keys.losses)
        ends = dict[str, datetime]()
        for one, value in losses.items():
            count, at = map(int, value.split(b":"))
            if count >= OFTEN_LOST and unix_ms(now) - at <= RETENTION_MS:
                ends[one.decode()] = from_unix_ms(at) + MustCoolDown(count).cool_down
        for one, status in zip(ends, self.statuses([*ends]), strict=True):
            if status.state != "free":
                ends[one] = now if status.state == "in-progress" else self.detail(one).at or now
        return {id_of(one): end for one, end in ends.items()}

    @property
    def keys(self) -> Sets:
        return Sets(*(f"qm:lease:{self.system}:{one}" for one in Sets._fields))

    @property
    def _slot_key(self) -> str:
        return f"qm:lease:{self.system}:slot"

    @property
    def _lease_ms(self) -> int:
        return milliseconds(self.lease)

    def _run(self, script: Script, *arguments: Any) -> Any:
        with lease_server() as client:
            return script(client, self.keys, arguments)

    def _record(self, script: Script, *arguments: Any) -> Any:
        """Run a script that records starts or ends; `None` if Redis is unavailable."""
        return _recorder().attempt(lambda client: script(client, self.keys, arguments))

    def _each(self, script: Script, names: Sequence[str | int], *arguments: Any) -> None:
        for first in range(0, len(names), MAX_ARGUMENTS):
            self._run(script, *arguments, *names[first : first + MAX_ARGUMENTS])


@contextmanager
def lease_server() -> Iterator[redis.Redis]:
    """Yield the client of this process, which does not decode replies. Raises `Unavailable` for its errors."""
    try:
        yield _client()
    except redis.RedisError as error:
        raise Unavailable(describe_outage(settings().redis_url, error)) from error


_unreleased: dict[str, str] = {}
"""The tokens of scan locks that ended scans of this process may still hold, by key."""
_client = PerProcess(lambda: make_client(settings().redis_url))
_recorder = PerProcess(lambda: BestEffortClient(settings().redis_url, records="Starts of items"))
