"""Heartbeats of workers: name, release, consumed queues, and why they take no items, every two seconds until shutdown.

Guarantee: a worker that was killed or lost its connection is offline after `OFFLINE_AFTER`, by the clock of Redis.
Recording a heartbeat never raises and waits at most `HEARTBEAT_TIMEOUT`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

import redis

from queue_manager.core.clock import hours, milliseconds, seconds
from queue_manager.core.redis_client import PerProcess, Script, make_client
from queue_manager.core.settings import settings

WORKERS_KEY = "qm:workers"
QUEUES_KEY = "qm:workers:queues"
RELEASES_KEY = "qm:workers:releases"
PAUSED_KEY = "qm:workers:paused"
OWN_RELEASE = version("queue-manager")
OFFLINE_AFTER = seconds(10)
FULL_INTERVAL = 60.0  # seconds between two full heartbeats of a worker whose queues do not change
RETENTION = hours(1)  # of the keys after the last full heartbeat
HEARTBEAT_TIMEOUT = 0.5  # seconds that a worker waits for Redis

# Records the heartbeat of a worker. The first one, and each one that is asked to be full, also records its queues, its
# release and its pause, deletes workers that are offline, and extends the keys.
#
# KEYS[1]  workers: sorted set of names by the time of their last heartbeat in ms
# KEYS[2]  hash of the queues as JSON, by name; without workers that do not report their queues
# KEYS[3]  hash of the release, by name
# KEYS[4]  hash of the reason why a worker takes no items, by name; without workers that take some
# ARGV     name, ms after which a worker is offline, its queues or '', its release, ms until the keys expire, 1 if full,
#          why it takes no items or ''
# Returns  nothing
#
# A script, because it needs the clock of Redis. Atomic, so that the keys agree. Idempotent.
RECORD = Script("""#!lua
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
if redis.call('ZADD', KEYS[1], ms, ARGV[1]) == 0 and ARGV[6] == '0' then
    return
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms - ARGV[2])) do
    redis.call('HDEL', KEYS[2], gone)
    redis.call('HDEL', KEYS[3], gone)
    redis.call('HDEL', KEYS[4], gone)
    redis.call('ZREM', KEYS[1], gone)
end
if ARGV[3] ~= '' then
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
if ARGV[7] ~= '' then
    redis.call('HSET', KEYS[4], ARGV[1], ARGV[7])
else
    redis.call('HDEL', KEYS[4], ARGV[1])
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[5]) end
""")


@dataclass(frozen=True, kw_only=True)
class Worker:
    name: str
    """Celery's node name."""
    pid: int
    seen_at: datetime
    queues: tuple[str, ...] | None = None
    """Consumed queues; `None` if unknown, as for a worker of an older release."""
    release: str | None = None
    """`None` for releases before 0.2."""
    paused: str | None = None
    """Why it takes no items; `None` if it does."""


class _Recorder:
    """Records the heartbeats of this process."""

    def __init__(self) -> None:
        url = settings().redis_url
        self._client = make_client(url, socket_timeout=HEARTBEAT_TIMEOUT, socket_connect_timeout=HEARTBEAT_TIMEOUT)
        self._full_at: dict[tuple[str, str, str], float] = {}

    def record(self, member: str, queues: str, paused: str) -> None:
        now, recorded = time.monotonic(), (member, queues, paused)
        is_full = now >= self._full_at.get(recorded, 0) + FULL_INTERVAL
        arguments = [milliseconds(OFFLINE_AFTER), queues, OWN_RELEASE, milliseconds(RETENTION), int(is_full), paused]
        RECORD(self._client, [WORKERS_KEY, QUEUES_KEY, RELEASES_KEY, PAUSED_KEY], [member, *arguments])
        if is_full:
            self._full_at = {recorded: now}

    def remove(self, member: str) -> None:
        with self._client.pipeline() as pipe:
            pipe.zrem(WORKERS_KEY, member)
            pipe.hdel(QUEUES_KEY, member)
            pipe.hdel(RELEASES_KEY, member)
            pipe.hdel(PAUSED_KEY, member)
            pipe.execute()


_recorder = PerProcess(_Recorder)


def record(name: str, queues: Iterable[str] | None = None, *, paused: str | None = None) -> None:
    """Record a heartbeat of the worker `name` of this process, which consumes `queues`. Best effort.

    Args:
        paused: why it takes no items.
    """
    with suppress(redis.RedisError):
        _recorder().record(_member(name), "" if queues is None else json.dumps(sorted(queues)), paused or "")


def remove(name: str) -> None:
    """Remove a worker on shutdown. Best effort: otherwise it expires after `OFFLINE_AFTER`."""
    with suppress(redis.RedisError):
        _recorder().remove(_member(name))


def online(client: redis.Redis) -> list[Worker]:
    """Return the online workers by name; `client` must decode its replies. Raises the errors of redis-py."""
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.zrange(WORKERS_KEY, 0, -1, withscores=True)
        pipe.hgetall(QUEUES_KEY)
        pipe.hgetall(RELEASES_KEY)
        pipe.hgetall(PAUSED_KEY)
        (now, micros), found, queues, releases, paused = pipe.execute()
    since = now * 1000 + micros // 1000 - milliseconds(OFFLINE_AFTER)
    workers = (
        _worker(member, ms, queues.get(member), releases.get(member), paused.get(member))
        for member, ms in found
        if ms > since
    )
    return sorted(workers, key=lambda worker: worker.name)


def unconsumed(workers: Iterable[Worker], queues: Iterable[str]) -> list[str]:
    """Return those of `queues` that no worker consumes; empty if the queues of a worker are unknown."""
    consumed: set[str] = set()
    for worker in workers:
        if worker.queues is None:
            return []
        consumed.update(worker.queues)
    return [queue for queue in queues if queue not in consumed]


def _member(name: str) -> str:
    return f"{name} {os.getpid()}"  # Celery allows two workers with the same name


def _worker(member: str, ms: float, queues: str | None, release: str | None, paused: str | None) -> Worker:
    name, _, pid = member.rpartition(" ")
    seen_at = datetime.fromtimestamp(ms / 1000, UTC)
    consumed = None if queues is None else tuple(json.loads(queues))
    return Worker(name=name, pid=int(pid), seen_at=seen_at, queues=consumed, release=release, paused=paused)
