"""Which workers are online: each shows itself every two seconds, and leaves when it ends in order.

Guarantee: a worker that was killed, or that the broker lost, is gone after `GONE_AFTER`, by the clock of Redis. Showing
oneself never fails and hardly waits.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import redis

from queue_manager.core.clock import milliseconds, seconds
from queue_manager.core.per_process import PerProcess
from queue_manager.core.settings import settings
from queue_manager.transport.server import make_client

KEY = "qm:workers"
GONE_AFTER = seconds(10)
PATIENCE = 0.5  # seconds that a worker waits for a Redis that hangs

# Show that a worker is there now, and forget those that are gone.
#
# KEYS[1]  workers: sorted set of names by the time, in ms, at which each showed itself last
# ARGV     name, ms after which a worker is gone
# Returns  nothing
#
# A script for its clock. Harmless when repeated.
SHOW = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZADD', KEYS[1], ms, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ms - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""


@dataclass(frozen=True, kw_only=True)
class Worker:
    name: str
    """Celery's node name."""
    pid: int
    seen_at: datetime


_client = PerProcess(
    lambda: make_client(settings().redis_url, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)
)


def show(name: str) -> None:
    """Show that the worker `name` of this process is there. Best effort: the next time comes soon."""
    with suppress(redis.RedisError):
        _client().eval(SHOW, 1, KEY, _member(name), milliseconds(GONE_AFTER))


def leave(name: str) -> None:
    """Say that it ends. Best effort: it is gone a little later by itself."""
    with suppress(redis.RedisError):
        _client().zrem(KEY, _member(name))


def online(client: redis.Redis) -> list[Worker]:
    """Return the workers that are there, by name; `client` decodes its replies. Raises what redis-py raises."""
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.zrange(KEY, 0, -1, withscores=True)
        (now, micros), found = pipe.execute()
    since = now * 1000 + micros // 1000 - milliseconds(GONE_AFTER)
    return sorted((_worker(member, ms) for member, ms in found if ms > since), key=lambda worker: worker.name)


def _member(name: str) -> str:
    return f"{name} {os.getpid()}"  # two workers of one name, which Celery allows, are two


def _worker(member: str, ms: float) -> Worker:
    name, _, pid = member.rpartition(" ")
    return Worker(name=name, pid=int(pid), seen_at=datetime.fromtimestamp(ms / 1000, UTC))
