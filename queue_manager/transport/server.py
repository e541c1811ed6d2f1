"""What the Redis server itself must be like, so that nothing put into it disappears."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import masked

OUTAGES = (redis.ConnectionError, redis.TimeoutError)
"""What redis-py raises while the server is away."""

OLDEST = (7, 0)  # the first whose scripts may say that they run when memory is full

CLIENT_OPTIONS = {
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    # A command whose reply was lost must not be repeated behind our back.
    "retry": Retry(NoBackoff(), 0),
}


def connect(url: str) -> redis.Redis:
    """Return a client that repeats nothing on its own and waits for nothing long."""
    return redis.Redis.from_url(url, decode_responses=True, **CLIENT_OPTIONS)


def require_server(url: str) -> None:
    """Refuse a server that we cannot work with: one that evicts keys, is too old, or does not let us in.

    One that evicts keys when its memory is full would drop messages; one that is too old cannot run scripts then, so
    that nothing could be taken from it. Valkey reports the version of Redis that it is compatible with: 7.2 or more.

    Raises:
        ConfigurationError: it is such a server.
        redis.ConnectionError, redis.TimeoutError: the server is away.
    """
    info = _info(url)
    _refuse_eviction(url, info)
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ConfigurationError(
            f"Redis at {masked(url)} is version {version}, whose full memory could not be drained: accepted is "
            "Redis 7.0 or Valkey 7.2, or newer"
        )


def _info(url: str) -> dict[str, Any]:
    try:
        with connect(url) as client:
            info: dict[str, Any] = client.info()
    except redis.AuthenticationError as error:  # a ConnectionError by birth, which no waiting mends
        raise ConfigurationError(f"Redis at {masked(url)} refuses our credentials ({error})") from error
    return info


def _refuse_eviction(url: str, info: Mapping[str, Any]) -> None:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigurationError(
            f"Redis at {masked(url)} has maxmemory-policy {policy!r} and would drop messages when its memory is "
            "full: accepted is 'noeviction' (CONFIG SET maxmemory-policy noeviction, and in its configuration)"
        )
