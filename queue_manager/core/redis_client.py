"""Clients of Redis, and what the server must be like, so that nothing put into it disappears."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterDownError, MasterDownError, ReadOnlyError
from redis.retry import Retry

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import masked

Error = redis.RedisError
"""Base of every error of redis-py."""
OUTAGES = (redis.ConnectionError, redis.TimeoutError)
"""What redis-py raises while the server is away."""

OLDEST = (7, 0)  # the first whose scripts may say that they run when memory is full

CLIENT_OPTIONS = {
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    # A command whose reply was lost must not be repeated behind our back.
    "retry": Retry(NoBackoff(), 0),
}


_REFUSALS = (ReadOnlyError, MasterDownError, AskError, ClusterDownError)  # MOVED is a kind of ASK in redis-py
_REFUSAL_CODES = ("MISCONF ", "NOREPLICAS ", "UNBLOCKED ")  # of replies that redis-py has no class for
_refusals: Counter[tuple[str, int]] = Counter()  # refusals so far, by host and port


class Connection(redis.Connection):
    """A connection that is made anew after its server refused what only a working primary does.

    After a fail-over the old primary may live on as a replica, and keep its connections, while its address already
    leads to another server. So once any connection of this process was refused, each connection to that address is made
    anew when it is next taken from its pool.
    """

    _seen: int | None = None

    def connect(self) -> None:
        refusals = _refusals[self.host, self.port]
        if self._seen is not None and self._seen != refusals:
            self.disconnect()  # type: ignore[no-untyped-call]
        self._seen = refusals
        super().connect()  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)
        except redis.ResponseError as error:
            if isinstance(error, _REFUSALS) or str(error).startswith(_REFUSAL_CODES):
                _refusals[self.host, self.port] += 1
            raise


class SecureConnection(Connection, redis.SSLConnection):
    """The same over TLS."""


def client_options(url: str) -> dict[str, Any]:
    """Return the options of every client of the server at `url`, for code that makes the client itself."""
    return {**CLIENT_OPTIONS, "connection_class": SecureConnection if url.startswith("rediss:") else Connection}


def make_client(url: str, **options: Any) -> redis.Redis:
    """Return a client that repeats nothing on its own and waits for nothing long; `options` replace the usual ones."""
    return redis.Redis.from_url(url, **{**client_options(url), **options})


def connect(url: str) -> redis.Redis:
    """Return such a client that decodes its replies."""
    return make_client(url, decode_responses=True)


def require_broker(url: str) -> None:
    """Refuse what `require_server` refuses, and a node of a Redis Cluster: broker and leases use keys of many slots.

    Raises what `require_server` raises.
    """
    info = require_server(url)
    if info.get("cluster_enabled"):
        raise ConfigurationError(
            f"Redis at {masked(url)} is a node of a Redis Cluster, on which neither a broker nor leases can run: "
            "REDIS_URL and BROKER_URL must name a Redis or Valkey without cluster mode"
        )


def require_server(url: str) -> Mapping[str, Any]:
    """Refuse a server that we cannot work with: one that evicts keys, is too old, or does not let us in.

    One that evicts keys when its memory is full would drop messages; one that is too old cannot run scripts then, so
    that nothing could be taken from it. Valkey reports the version of Redis that it is compatible with: 7.2 or more.
    Returns the server's INFO.

    Raises:
        ConfigurationError: it is such a server.
        redis.ConnectionError, redis.TimeoutError: the server is away.
    """
    info = _info(url)
    refuse_unsuitable(url, info)
    return info


def refuse_unsuitable(url: str, info: Mapping[str, Any]) -> None:
    """Refuse a server that evicts keys or is too old, by its INFO. Raises ConfigurationError."""
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
    except redis.exceptions.NoPermissionError as error:
        raise ConfigurationError(
            f"Redis at {masked(url)} does not let this user run INFO, which shows whether the server can be used: "
            "grant +info"
        ) from error
    return info


def _refuse_eviction(url: str, info: Mapping[str, Any]) -> None:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigurationError(
            f"Redis at {masked(url)} has maxmemory-policy {policy!r} and would drop messages when its memory is "
            "full: accepted is 'noeviction' (CONFIG SET maxmemory-policy noeviction, and in its configuration)"
        )
