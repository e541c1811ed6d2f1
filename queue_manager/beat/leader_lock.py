"""Leader lock in Redis: a renewable lease with an epoch that increases with each takeover.

Guarantee: at most one beat holds the lock by the clock of Redis, and each takeover has a higher epoch than the
previous one. If Redis lost its data, it restarts at epoch 1, until `raise_epoch` reports the known epoch and gives the
holder the next one. All scripts are idempotent, so a lost reply is harmless.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from uuid import uuid4

from kombu.utils.encoding import bytes_to_str
from redis import Redis

from queue_manager.broker.keys import SCHEDULE_PREFIX
from queue_manager.core.clock import milliseconds
from queue_manager.core.redis_client import Script

LEADER_LOCK = f"{SCHEDULE_PREFIX}:lock"
"""Key of the leader lock."""
MAX_EXTEND_INTERVAL = 3.0  # seconds

# Acquires the lock if it is free and increments the epoch; keeps it if this token holds it.
#
# KEYS[1]  lock: hash {token, host, pid, since_ms, epoch} that expires
# KEYS[2]  number of takeovers so far
# ARGV     token, host, pid, lease in ms
# Returns  {epoch, holder}: the epoch is 0 if another token holds it; the holder is "host:pid"
#
# Atomic, so that no other beat acquires the lock between check and write, and no two leaders share an epoch.
# Idempotent.
ACQUIRE_LOCK = Script("""
local holder = redis.call('HGET', KEYS[1], 'token')
if not holder then
    local now = redis.call('TIME')
    local since_ms = now[1] .. string.format('%03d', math.floor(now[2] / 1000))
    local epoch = redis.call('INCR', KEYS[2])
    redis.call('HSET', KEYS[1], 'token', ARGV[1], 'host', ARGV[2], 'pid', ARGV[3],
               'since_ms', since_ms, 'epoch', epoch)
end
local lock = redis.call('HMGET', KEYS[1], 'token', 'host', 'pid', 'epoch')
local owner = lock[2] .. ':' .. lock[3]
if lock[1] ~= ARGV[1] then
    return {0, owner}
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {tonumber(lock[4]), owner}
""")

# Extends the lock if this token holds it.
#
# KEYS[1]  lock
# ARGV     token, lease in ms
# Returns  the epoch, or 0 if the lock expired or another token holds it
#
# Atomic, so that the lock does not expire between check and write.
EXTEND_LOCK = Script("""
local lock = redis.call('HMGET', KEYS[1], 'token', 'epoch')
if lock[1] ~= ARGV[1] then
    return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return tonumber(lock[2])
""")

# Gives the holder the epoch after a known one, if Redis lost the number of takeovers.
#
# KEYS[1]  lock
# KEYS[2]  number of takeovers so far
# ARGV     known epoch, ms since it became known
# Returns  1 if it was raised, else 0
#
# A holder that acquired the lock before the epoch became known is an older leader, whose epoch is not raised.
# Atomic, because the holder may change meanwhile, and an epoch has one holder. Idempotent.
RAISE_EPOCH = Script("""
local since = redis.call('HGET', KEYS[1], 'since_ms')
local now = redis.call('TIME')
if not since or now[1] * 1000 + math.floor(now[2] / 1000) - since >= tonumber(ARGV[2]) then
    return 0
end
if tonumber(redis.call('GET', KEYS[2]) or 0) >= tonumber(ARGV[1]) then
    return 0
end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'epoch', redis.call('INCR', KEYS[2]))
return 1
""")

# Releases the lock if this token holds it.
#
# KEYS[1]  lock
# ARGV     token
# Returns  1 if it was released, else 0
#
# Atomic, so that a lock that another beat has acquired meanwhile is not deleted.
RELEASE_LOCK = Script("""
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
    return 0
end
return redis.call('DEL', KEYS[1])
""")


class LeadershipLost(Exception):
    """The lock expired or another beat holds it, so nothing may be published."""


class LeaderLock:
    """The leader lock in one process.

    `epoch` is the number of the takeover while this process holds the lock, else 0.
    """

    def __init__(self, client: Redis, key: str, *, lease: timedelta) -> None:
        self.epoch = 0
        self._client = client
        self._keys = (key, epoch_key(key))
        self._lease = lease
        self._token = uuid4().hex
        self._renewed_at = 0.0

    def acquire(self) -> str:
        """Acquire the lock if it is free, and set `epoch`; return the holder as `host:pid`."""
        sent_at = time.monotonic()
        owner = (self._token, socket.gethostname(), os.getpid())
        epoch, holder = ACQUIRE_LOCK(self._client, self._keys, [*owner, milliseconds(self._lease)])
        self.epoch, self._renewed_at = int(epoch), sent_at
        return str(bytes_to_str(holder))  # decoded or not by the client

    def extend(self) -> bool:
        """Extend the lock to its full lease and update the epoch; return False if it was lost."""
        # Measured before the command is sent, so that the lease never ends earlier in Redis than here.
        sent_at = time.monotonic()
        self.epoch = int(EXTEND_LOCK(self._client, self._keys[:1], [self._token, milliseconds(self._lease)]))
        self._renewed_at = sent_at
        # Trusted for 90% of the lease only, because the clock of Redis may run faster than ours.
        return self.epoch > 0 and self._age() < self._lease.total_seconds() * 0.9

    def keep(self) -> bool:
        """Return True if this process holds the lock; extend it first if it is not fresh.

        A process that was suspended past its lease notices it here, because the monotonic clock continued.
        """
        return self.is_fresh() or (self.epoch > 0 and self.extend())

    def is_fresh(self) -> bool:
        """Return True if this process holds the lock and extended it within half of the lease, and within 3 s.

        A Redis that lost its data is noticed when the lock is extended.
        """
        return self.epoch > 0 and self._age() <= min(self._lease.total_seconds() / 2, MAX_EXTEND_INTERVAL)

    def forget(self) -> None:
        """Stop acting as the holder. In Redis the lock expires, unless `acquire` takes it again."""
        self.epoch = 0

    def release(self) -> None:
        """Release the lock, so that another beat can acquire it. Does nothing if this process does not hold it."""
        self.forget()
        RELEASE_LOCK(self._client, self._keys[:1], [self._token])

    def _age(self) -> float:
        return time.monotonic() - self._renewed_at


def raise_epoch(client: Redis, lock_key: str, *, known: int, age: timedelta) -> bool:
    """Raise the epoch in Redis above `known`, which is `age` old, in case Redis lost its data; return True if raised.

    The holder knows it when it next extends the lock. Raises the errors of redis-py.
    """
    return bool(RAISE_EPOCH(client, [lock_key, epoch_key(lock_key)], [known, milliseconds(age)]))


def epoch_key(lock_key: str) -> str:
    """Return the key of the number of takeovers of the lock `lock_key`."""
    # Beats of release 0.1 use this key; sharing it keeps the epochs of both releases in order.
    return "redbeat::lock:epoch" if lock_key == LEADER_LOCK else f"{lock_key}:epoch"
