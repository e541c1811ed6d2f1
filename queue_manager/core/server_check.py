"""Checks at start-up: wait until a server is reachable, and refuse a Redis that could lose messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import redis
import structlog

from queue_manager.core.errors import ConfigurationError, reason, refusing_server, unavailable_server
from queue_manager.core.redis_client import Script, connect
from queue_manager.core.redis_url import CLUSTER_SCHEME
from queue_manager.core.settings import redact_url

T = TypeVar("T")

CHECK_INTERVAL = 2.0  # seconds
UNREACHABLE_LOG_INTERVAL = 30.0  # seconds
MIN_REDIS_VERSION = (7, 0)  # the first version with script flags such as allow-oom
# A server that refuses writes refuses each script that may write.
MAY_WRITE = Script("#!lua\nreturn 1")


def until_reachable(
    check: Callable[[], T],
    *,
    server: str,
    url: str,
    log: structlog.stdlib.BoundLogger,
) -> T:
    """Call `check` until no server is unavailable; return its result. Logs the first error, then one every 30 s."""
    logged_at: float | None = None
    while True:
        try:
            result = check()
        except Exception as error:
            if unavailable_server(error) is None:
                raise
            if logged_at is None or time.monotonic() - logged_at > UNREACHABLE_LOG_INTERVAL:
                log.warning(
                    f"{server} at {redact_url(url)} is unreachable ({reason(error)}); retrying until it is back"
                )
                logged_at = time.monotonic()
            time.sleep(CHECK_INTERVAL)
        else:
            if logged_at is not None:
                log.info(f"{server} at {redact_url(url)} is back")
            return result


def require_server(url: str, client: redis.Redis | None = None) -> None:
    """Check that the server is usable, with a new connection or with a `client` that decodes its replies.

    A server that evicts keys would drop messages when its memory is full. A server that is too old cannot run scripts
    then, so that its queues could not be drained. Valkey reports the version of Redis that it is compatible with.
    Broker and leases use keys of many slots, and a `redis://` URL works with one node of a cluster only.

    Raises:
        ConfigurationError: the server evicts keys, is too old, refuses the credentials, or is a node of a Redis
            Cluster whose URL is not `cluster://`.
        redis.ConnectionError, redis.TimeoutError: the server is unavailable.
    """
    info = _info(url, client)
    _refuse_eviction(url, info)
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_REDIS_VERSION:
        raise ConfigurationError(
            f"Redis at {redact_url(url)} is version {version}, which cannot be drained when its memory is full: it "
            "must be Redis 7.0 or Valkey 7.2, or newer"
        )
    if info.get("cluster_enabled") and not url.startswith(f"{CLUSTER_SCHEME}:"):
        raise ConfigurationError(
            f"Redis at {redact_url(url)} is a node of a Redis Cluster, on which only the message queue can run: "
            "QM_QUEUE_REDIS_URL must be a URL such as cluster://host:6379/0, and QUEUE_NAME a name in braces, such as "
            "{queue}. REDIS_URL and BROKER_URL must name a Redis or Valkey without cluster mode"
        )


def refused_writes(client: redis.Redis) -> str | None:
    """Return why a server refuses writes for now; `None` if it takes them. Raises other errors of redis-py."""
    try:
        MAY_WRITE(client, [], [])
    except redis.ResponseError as error:
        if refusing_server(error) is None:
            raise
        return reason(error)
    return None


def _info(url: str, client: redis.Redis | None) -> dict[str, Any]:
    try:
        with connect(url) if client is None else nullcontext(client) as server:
            info: dict[str, Any] = server.info()
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
