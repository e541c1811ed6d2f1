"""The leader's lock in Redis: held for a bounded time, renewed by its holder, and counted.

Guarantee: of any number of beats, at most one holds the lock by Redis's clock, and each take-over has a
higher epoch than the one before. Redis that lost its data starts again at epoch 1, until `raise_epoch` tells it
which epoch others have seen; the holder then takes the next one. Every script may be repeated without harm, so a
lost reply changes nothing.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from redis import Redis

from queue_manager.broker.keys import SCHEDULE_PREFIX
from queue_manager.core.clock import milliseconds, seconds

LEADER_LOCK = f"{SCHEDULE_PREFIX}:lock"
"""The key by which one beat leads."""

# Take the lock if it is free and count the take-over; keep it if this token holds it already.
#
# KEYS[1]  lock: hash {token, host, pid, since_ms, epoch} that expires
# KEYS[2]  number of take-overs so far
# ARGV     token, host, pid, lease in ms
# Returns  {epoch, holder}: the epoch is 0 when another holds it; the holder is "host:pid"
#
# Atomic because between a look and the write another may take the lock, and because a lock without its epoch
# would let two leaders share one. Harmless when repeated: the token then holds the lock, nothing is counted.
ACQUIRE = """
local holder = redis.call('HGET', KEYS[1], 'token')
if not holder then
    local now = redis.call('TIME')
    local since_ms = now[1] .. string.format('%03d', math.floor(now[2] / 1000))
    local epoch = redis.call('INCR', KEYS[2])
    redis.call('HSET', KEYS[1], 'token', ARGV[1], 'host', ARGV[2], 'pid', ARGV[3],
               'since_ms', since_ms, 'epoch', epoch)
end
local lock = redis.call('HMGET', KEYS[1], 'token', 'host', 'pid', 'epoch')
local described = lock[2] .. ':' .. lock[3]
if lock[1] ~= ARGV[1] then
    return {0, described}
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {tonumber(lock[4]), described}
"""

# Prolong the lock if this token still holds it, with the next epoch if the number of take-overs was raised.
#
# KEYS[1]  lock
# KEYS[2]  number of take-overs so far
# ARGV     token, lease in ms
# Returns  the epoch when it is held, 0 when it ended or another holds it
#
# Atomic because between a look and the write the lock may end and be another's, and because an epoch has one holder.
EXTEND = """
local lock = redis.call('HMGET', KEYS[1], 'token', 'epoch')
if lock[1] ~= ARGV[1] then
    return 0
end
local epoch = tonumber(lock[2])
if tonumber(redis.call('GET', KEYS[2]) or 0) > epoch then
    epoch = redis.call('INCR', KEYS[2])
    redis.call('HSET', KEYS[1], 'epoch', epoch)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return epoch
"""

# Raise the number of take-overs to an epoch that others have seen, if Redis forgot it.
#
# KEYS[1]  lock
# KEYS[2]  number of take-overs so far
# ARGV     epoch that others have seen, ms for which they have known it
# Returns  1 when it was raised, 0 when it was not
#
# A holder that has had the lock for longer than others have known the epoch is an older leader: it stays one.
# Atomic because the lock may change hands meanwhile. Harmless when repeated: the number is that high then.
RAISE = """
local since = redis.call('HGET', KEYS[1], 'since_ms')
local now = redis.call('TIME')
if not since or now[1] * 1000 + math.floor(now[2] / 1000) - since >= tonumber(ARGV[2]) then
    return 0
end
if tonumber(redis.call('GET', KEYS[2]) or 0) >= tonumber(ARGV[1]) then
    return 0
end
redis.call('SET', KEYS[2], ARGV[1])
return 1
"""

# Give the lock back if this token still holds it.
#
# KEYS[1]  lock
# ARGV     token
# Returns  1 when it was held, 0 when it was not
#
# Atomic for the reason of EXTEND.
RELEASE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
    return 0
end
return redis.call('DEL', KEYS[1])
"""


class LeaderLock:
    """The lock as one process sees it.

    `epoch` is the number of the take-over while the lock is held, 0 otherwise.
    """

    def __init__(self, client: Redis, key: str, *, lease: timedelta) -> None:
        self.epoch = 0
        self._client = client
        self._key = key
        self._lease = lease
        # A tenth is kept back: Redis starts its count later than we do, but its clock may run faster.
        self._trusted = lease.total_seconds() * 0.9
        self._token = uuid4().hex
        self._renewed_at = 0.0

    def acquire(self) -> str:
        """Take the lock if it is free, and set `epoch`; return who holds it now, as `host:pid`."""
        asked_at = time.monotonic()
        owner = (self._token, socket.gethostname(), os.getpid())
        keys = (self._key, epoch_key(self._key))
        epoch, holder = self._run(ACQUIRE, keys, *owner, milliseconds(self._lease))
        self.epoch, self._renewed_at = int(epoch), asked_at
        return _text(holder)

    def extend(self) -> bool:
        """Prolong the lock to its full time, and follow its epoch; tell whether it is still ours."""
        # Counted from before the command was sent: the lease ends in Redis later than that, never earlier.
        asked_at = time.monotonic()
        self.epoch = int(self._run(EXTEND, (self._key, epoch_key(self._key)), self._token, milliseconds(self._lease)))
        self._renewed_at = asked_at
        return self.is_trusted()

    def keep(self) -> bool:
        """Tell whether the lock is ours at this moment; prolong it first if a quarter of its time has passed.

        A process that was stopped past its lease finds out here before it acts: the monotonic clock ran on.
        """
        if self.epoch and self._age() > self._lease.total_seconds() / 4:
            return self.extend()
        return self.is_trusted()

    def is_trusted(self) -> bool:
        """Tell, without asking Redis, whether the lock cannot have ended yet."""
        return self.epoch > 0 and self._age() < self._trusted

    def forget(self) -> None:
        """Act no longer as the holder. In Redis the lock runs out by itself; `acquire` takes it back."""
        self.epoch = 0

    def release(self) -> None:
        """Give the lock back, so that another may have it at once. Does nothing when it is not ours."""
        self.forget()
        self._run(RELEASE, (self._key,), self._token)

    def _age(self) -> float:
        return time.monotonic() - self._renewed_at

    def _run(self, script: str, keys: tuple[str, ...], *arguments: str | int) -> Any:
        return self._client.eval(script, len(keys), *keys, *arguments)


@dataclass(frozen=True, kw_only=True)
class Leadership:
    """Who leads, and for how long yet unless they renew."""

    host: str
    pid: int
    since: datetime
    epoch: int
    lease_left: timedelta


def leadership(client: Redis, lock_key: str) -> Leadership | None:
    """Return who holds the lock `lock_key`, or None when nobody does."""
    with client.pipeline(transaction=True) as pipe:
        pipe.hgetall(lock_key)
        pipe.pttl(lock_key)
        fields, left_ms = pipe.execute()
    if not fields:
        return None
    lock = {_text(name): _text(value) for name, value in fields.items()}
    return Leadership(
        host=lock["host"],
        pid=int(lock["pid"]),
        since=datetime.fromtimestamp(int(lock["since_ms"]) / 1000, UTC),
        epoch=int(lock["epoch"]),
        lease_left=seconds(max(left_ms, 0) / 1000),
    )


def raise_epoch(client: Redis, lock_key: str, *, known: int, age: timedelta) -> bool:
    """Tell Redis of the epoch `known`, seen `age` ago, in case it lost its data since; return True if it had.

    The holder of the lock takes a higher epoch when it next prolongs the lock. Raises what redis-py raises.
    """
    keys = (lock_key, epoch_key(lock_key))
    return bool(client.eval(RAISE, len(keys), *keys, known, milliseconds(age)))


def epoch_key(lock_key: str) -> str:
    """Return the key of the number of take-overs of the lock `lock_key`."""
    # Beats of release 0.1 count under this key: one number for both keeps the epochs of all in order.
    return "redbeat::lock:epoch" if lock_key == LEADER_LOCK else f"{lock_key}:epoch"


def _text(value: str | bytes) -> str:
    # A client decodes replies or not, as whoever made it chose.
    return value.decode() if isinstance(value, bytes) else value
