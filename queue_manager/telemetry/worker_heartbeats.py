"""Heartbeats of workers: name, release and consumed queues, every two seconds until shutdown.

Guarantee: a worker that was killed or lost its connection is offline after `OFFLINE_AFTER`, by the clock of Redis.
Recording a heartbeat never raises and waits at most `HEARTBEAT_TIMEOUT`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

import redis

from queue_manager.core.clock import milliseconds, seconds
from queue_manager.core.redis_client import PerProcess, make_client
from queue_manager.core.settings import settings

WORKERS_KEY = "qm:workers"
QUEUES_KEY = "qm:workers:queues"
RELEASES_KEY = "qm:workers:releases"
OWN_RELEASE = version("queue-manager")
OFFLINE_AFTER = seconds(10)
HEARTBEAT_TIMEOUT = 0.5  # seconds that a worker waits for Redis

# Records the heartbeat of a worker, and deletes workers that are offline.
#
# KEYS[1]  workers: sorted set of names by the time of their last heartbeat in ms
# KEYS[2]  hash of the queues as JSON, by name; without workers that do not report their queues
# KEYS[3]  hash of the release, by name
# ARGV     name, ms after which a worker is offline, its queues or '', its release
# Returns  nothing
#
# A script, because it needs the clock of Redis. Atomic, so that the three keys agree. Idempotent.
RECORD = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZADD', KEYS[1], ms, ARGV[1])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms - ARGV[2])) do
    redis.call('HDEL', KEYS[2], gone)
    redis.call('HDEL', KEYS[3], gone)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ms - ARGV[2])
if ARGV[3] ~= '' then
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[2]) end
"""


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


_client = PerProcess(
    lambda: make_client(
        settings().redis_url, socket_timeout=HEARTBEAT_TIMEOUT, socket_connect_timeout=HEARTBEAT_TIMEOUT
    )
)


def record(name: str, queues: Iterable[str] | None = None) -> None:
    """Record a heartbeat of the worker `name` of this process, which consumes `queues`. Best effort."""
    consumed = "" if queues is None else json.dumps(sorted(queues))
    with suppress(redis.RedisError):
        keys = WORKERS_KEY, QUEUES_KEY, RELEASES_KEY
        _client().eval(RECORD, len(keys), *keys, _member(name), milliseconds(OFFLINE_AFTER), consumed, OWN_RELEASE)


def remove(name: str) -> None:
    """Remove a worker on shutdown. Best effort: otherwise it expires after `OFFLINE_AFTER`."""
    with suppress(redis.RedisError):
        with _client().pipeline() as pipe:
            pipe.zrem(WORKERS_KEY, _member(name))
            pipe.hdel(QUEUES_KEY, _member(name))
            pipe.hdel(RELEASES_KEY, _member(name))
            pipe.execute()


def online(client: redis.Redis) -> list[Worker]:
    """Return the online workers by name; `client` must decode its replies. Raises the errors of redis-py."""
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.zrange(WORKERS_KEY, 0, -1, withscores=True)
        pipe.hgetall(QUEUES_KEY)
        pipe.hgetall(RELEASES_KEY)
        (now, micros), found, queues, releases = pipe.execute()
    since = now * 1000 + micros // 1000 - milliseconds(OFFLINE_AFTER)
    workers = (_worker(member, ms, queues.get(member), releases.get(member)) for member, ms in found if ms > since)
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


def _worker(member: str, ms: float, queues: str | None, release: str | None) -> Worker:
    name, _, pid = member.rpartition(" ")
    seen_at = datetime.fromtimestamp(ms / 1000, UTC)
    consumed = None if queues is None else tuple(json.loads(queues))
    return Worker(name=name, pid=int(pid), seen_at=seen_at, queues=consumed, release=release)
