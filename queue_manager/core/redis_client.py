"""Redis clients, and the checks that a server cannot lose messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterDownError, MasterDownError, ReadOnlyError
from redis.retry import Retry

from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import redact_url

Error = redis.RedisError
"""Base of every error of redis-py."""
OUTAGES = (redis.ConnectionError, redis.TimeoutError)
"""Errors of redis-py while the server is away."""

MIN_VERSION = (7, 0)  # the first version with script flags such as allow-oom

CLIENT_OPTIONS = {
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    # A command whose reply was lost must not be retried implicitly.
    "retry": Retry(NoBackoff(), 0),
}


_REFUSALS = (ReadOnlyError, MasterDownError, AskError, ClusterDownError)  # MovedError is a subclass of AskError
_REFUSAL_CODES = ("MISCONF ", "NOREPLICAS ", "UNBLOCKED ")  # of errors without a class in redis-py
_refusals: Counter[tuple[str, int]] = Counter()  # refusals so far, by host and port


class Connection(redis.Connection):
    """A connection that is reopened after its server refused a command that a working primary accepts.

    After a fail-over the old primary may continue as a replica and keep its connections, while its address already
    resolves to another server. Once a connection of this process was refused, all connections to that address are
    reopened when they are next taken from their pool.
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
    """`Connection` over TLS."""


def client_options(url: str) -> dict[str, Any]:
    """Return the options of every client of the server at `url`, for code that creates the client itself."""
    return {**CLIENT_OPTIONS, "connection_class": SecureConnection if url.startswith("rediss:") else Connection}


def make_client(url: str, **options: Any) -> redis.Redis:
    """Return a client without automatic retries and with short timeouts; `options` override the defaults."""
    return redis.Redis.from_url(url, **{**client_options(url), **options})


def connect(url: str) -> redis.Redis:
    """Return a client that decodes its replies."""
    return make_client(url, decode_responses=True)


def require_broker(url: str) -> None:
    """Refuse what `require_server` refuses, and a node of a Redis Cluster: broker and leases use keys of many slots.

    Raises like `require_server`.
    """
    info = require_server(url)
    if info.get("cluster_enabled"):
        raise ConfigurationError(
            f"Redis at {redact_url(url)} is a node of a Redis Cluster, on which neither a broker nor leases can run: "
            "REDIS_URL and BROKER_URL must name a Redis or Valkey without cluster mode"
        )


def require_server(url: str) -> Mapping[str, Any]:
    """Check that the server is usable and return its INFO.

    A server that evicts keys would drop messages when its memory is full. A server that is too old cannot run scripts
    then, so that its queues could not be drained. Valkey reports the version of Redis that it is compatible with.

    Raises:
        ConfigurationError: the server evicts keys, is too old, or refuses the credentials.
        redis.ConnectionError, redis.TimeoutError: the server is away.
    """
    info = _info(url)
    refuse_unsuitable(url, info)
    return info


def refuse_unsuitable(url: str, info: Mapping[str, Any]) -> None:
    """Refuse a server that evicts keys or is too old, by its INFO. Raises ConfigurationError."""
    _refuse_eviction(url, info)
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        raise ConfigurationError(
            f"Redis at {redact_url(url)} is version {version}, which cannot be drained when its memory is full: it "
            "must be Redis 7.0 or Valkey 7.2, or newer"
        )


def _info(url: str) -> dict[str, Any]:
    try:
        with connect(url) as client:
            info: dict[str, Any] = client.info()
    except redis.AuthenticationError as error:  # subclasses ConnectionError but is not transient
        raise ConfigurationError(f"Redis at {redact_url(url)} refuses our credentials ({error})") from error
    except redis.exceptions.NoPermissionError as error:
        raise ConfigurationError(
            f"Redis at {redact_url(url)} does not let this user run INFO, which shows whether the server can be used: "
            "grant +info"
        ) from error
    return info


def _refuse_eviction(url: str, info: Mapping[str, Any]) -> None:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigurationError(
            f"Redis at {redact_url(url)} has maxmemory-policy {policy!r} and would drop messages when its memory is "
            "full: it must be 'noeviction' (CONFIG SET maxmemory-policy noeviction, and in its configuration)"
        )
