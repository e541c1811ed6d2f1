"""What the Redis server itself must be like, so that nothing put into it disappears."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import masked

OUTAGES = (redis.ConnectionError, redis.TimeoutError)
"""What redis-py raises while the server is away."""

CLIENT_OPTIONS = {
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    # A command whose reply was lost must not be repeated behind our back.
    "retry": Retry(NoBackoff(), 0),
}


def connect(url: str) -> redis.Redis:
    """Return a client that repeats nothing on its own and waits for nothing long."""
    return redis.Redis.from_url(url, decode_responses=True, **CLIENT_OPTIONS)


def require_no_eviction(url: str) -> None:
    """Refuse a server that evicts keys when its memory is full, since it would drop messages, and wrong credentials.

    Raises:
        ConfigurationError: `maxmemory-policy` is not `noeviction`, or the server does not let us in.
        redis.ConnectionError, redis.TimeoutError: the server is away.
    """
    try:
        with connect(url) as client:
            policy = client.info("memory").get("maxmemory_policy", "noeviction")
    except redis.AuthenticationError as error:  # a ConnectionError by birth, which no waiting mends
        raise ConfigurationError(f"Redis at {masked(url)} refuses our credentials ({error})") from error
    if policy != "noeviction":
        raise ConfigurationError(
            f"Redis at {masked(url)} has maxmemory-policy {policy!r} and would drop messages when its memory is "
            "full: accepted is 'noeviction' (CONFIG SET maxmemory-policy noeviction, and in its configuration)"
        )
