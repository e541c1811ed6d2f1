"""Redis clients and scripts."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha1
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
)
from redis.retry import Retry

from queue_manager.core.background import CallThread
from queue_manager.core.clock import EPOCH
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_url import is_encrypted, parse_redis_url
from queue_manager.core.settings import redact_url, settings

T = TypeVar("T")

BEST_EFFORT_TIMEOUT = 0.5  # seconds that a caller waits for a Redis that hangs
BEST_EFFORT_PAUSE = 5.0  # seconds after an error
RedisError = redis.RedisError
"""Base of every error of redis-py."""
REDIS_OUTAGES = (redis.ConnectionError, redis.TimeoutError)
"""Errors of redis-py while the server is unavailable."""

NO_RETRY = Retry(NoBackoff(), 0)
CLIENT_OPTIONS = {
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    # A command whose reply was lost must not be retried implicitly.
    "retry": NO_RETRY,
    # The threads of a process limit the number; by default, the calls of more than 100 at once would fail.
    "max_connections": 2**31,
}
# The system closes a connection whose packets, or the probes of a silent one, are not confirmed for 6 s. Linux would
# send them again for 15 minutes, and redis-py notices a dead connection that only listens after 45 s.
TCP_OPTIONS = {
    getattr(socket, name): value
    for name, value in {
        "TCP_KEEPIDLE": 3,  # seconds
        "TCP_KEEPINTVL": 1,  # second
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": 6_000,  # milliseconds
    }.items()
    if hasattr(socket, name)  # macOS does not have them all
}


log = get_logger("QM/redis")

_REFUSALS = (ReadOnlyError, MasterDownError, AskError, ClusterDownError)  # MovedError is a subclass of AskError
_REFUSAL_CODES = ("MISCONF ", "NOREPLICAS ", "UNBLOCKED ")  # of errors without a class in redis-py
_refusal_counts: Counter[tuple[str, int]] = Counter()  # by host and port, since the process started


def find_master(*, sentinels: Sequence[tuple[str, int]], master_name: str, sentinel_kwargs: Any) -> tuple[str, int]:
    """Return the address of the master by the first Sentinel that knows it.

    Raises:
        redis.AuthenticationError: each Sentinel refuses the credentials.
        redis.ConnectionError: no Sentinel answers, or none knows the master.
    """

    def ask(sentinel: redis.Redis) -> Any:
        return sentinel.sentinel_get_master_addr_by_name(master_name)

    missing = f"no Sentinel gives the address of the master {master_name!r}"
    return _first_address(sentinels, sentinel_kwargs, ask, missing=missing)


def find_owner(*, nodes: Sequence[tuple[str, int]], node_options: Any) -> tuple[str, int]:
    """Return the address of the node of a Redis Cluster that serves the message queue, by the first node that answers.

    Raises like `find_master`.
    """

    def ask(node: redis.Redis) -> Any:
        asked = node.get_connection_kwargs()
        try:
            node.exists(settings().queue_name)
        except MovedError as moved:
            return moved.host.strip("?") or asked["host"], moved.port  # without a host: the one that was asked
        return asked["host"], asked["port"]

    return _first_address(nodes, node_options, ask, missing="no node of the Redis Cluster serves the message queue")


def _first_address(
    nodes: Sequence[tuple[str, int]], options: Any, ask: Callable[[redis.Redis], Any], *, missing: str
) -> tuple[str, int]:
    failures: dict[str, Exception | None] = {}
    for host, port in nodes:
        try:
            with redis.Redis(host, port, decode_responses=True, retry=NO_RETRY, **options) as node:
                if address := ask(node):
                    return str(address[0]), int(address[1])
            failures[f"{host}:{port} does not know it"] = None
        except redis.RedisError as error:
            failures[f"{host}:{port}: {error}"] = error
    is_login = all(isinstance(error, redis.AuthenticationError) for error in failures.values())
    kind = redis.AuthenticationError if is_login else redis.ConnectionError
    raise kind(f"{missing}: {'; '.join(failures)}")


class Connection(redis.Connection):
    """A connection that is reopened after its server refused a command that a working primary accepts.

    With `sentinel`, Sentinel names the server whenever the connection is opened; with `cluster`, a node of it does.

    After a failover the old primary may continue as a replica and keep its connections, while its address already
    resolves to another server. Once a connection of this process was refused, all connections to that address are
    reopened when they are next taken from their pool.
    """

    _seen: int | None = None

    def __init__(
        self,
        *args: Any,
        sentinel: Mapping[str, Any] | None = None,
        cluster: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._find = _finder(sentinel, cluster)

    @property
    def is_outdated(self) -> bool:
        """True if a connection to the same address was refused since this one was opened."""
        return self._seen is not None and self._seen != _refusal_counts[self.host, self.port]

    def connect(self) -> None:
        if self.is_outdated:
            self.disconnect()  # type: ignore[no-untyped-call]
        super().connect()  # type: ignore[no-untyped-call]
        self._seen = _refusal_counts[self.host, self.port]

    def _connect(self) -> Any:
        if self._find is not None:
            self.host, self.port = self._find()
        return super()._connect()  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().read_response(*args, **kwargs)
        except redis.ResponseError as error:
            if is_refusal(error):
                _refusal_counts[self.host, self.port] += 1
            raise


def _finder(
    sentinel: Mapping[str, Any] | None, cluster: Mapping[str, Any] | None
) -> Callable[[], tuple[str, int]] | None:
    """Return the function that finds the server; `None` if its address is fixed."""
    if sentinel is not None:
        return partial(find_master, **sentinel)
    return None if cluster is None else partial(find_owner, **cluster)


def is_refusal(error: redis.ResponseError) -> bool:
    """Return True if a working primary would have accepted the command."""
    return isinstance(error, _REFUSALS) or str(error).startswith(_REFUSAL_CODES)


def outage(error: Exception) -> str:
    """Return what is wrong with a server, to be read after its name."""
    what = "does not answer"
    if isinstance(error, redis.AuthenticationError):
        what = "refuses our credentials"
    elif isinstance(error, BusyLoadingError):
        what = "has not loaded its data yet"
    elif isinstance(error, redis.ResponseError):
        what = "refused a command"
    return f"{what} ({reason(error)})"


def describe_outage(url: str, error: Exception) -> str:
    """Return one sentence about an error of the Redis at a URL, without its password."""
    return f"Redis at {redact_url(url)} {outage(error)}"


class SecureConnection(Connection, redis.SSLConnection):
    """`Connection` over TLS."""


class AsyncConnection(redis.asyncio.Connection):
    """A connection for an event loop, like `Connection`; reopened after its server refused one of its own commands."""

    def __init__(
        self, *, sentinel: Mapping[str, Any] | None = None, cluster: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._find = _finder(sentinel, cluster)

    async def _connect(self) -> None:
        if self._find is not None:
            self.host, self.port = await CallThread("find-redis").run(self._find)
        await super()._connect()  # type: ignore[no-untyped-call]

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        try:
            await super().send_packed_command(*args, **kwargs)
        except RuntimeError as error:  # by uvloop, if the system has closed the connection
            raise redis.ConnectionError(f"the connection was closed: {error}") from error

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            response = await super().read_response(*args, **kwargs)
        except redis.ResponseError as error:
            if is_refusal(error):
                await self.disconnect(nowait=True)
            raise
        # redis-py takes the time-out of the system for that of a read with a limit, and would read again at once.
        if response is None and self._reader is not None and (lost := self._reader.exception()) is not None:
            await self.disconnect(nowait=True)
            raise redis.ConnectionError(f"the connection was closed: {lost}")
        return response


class AsyncSecureConnection(AsyncConnection, redis.asyncio.SSLConnection):
    """`AsyncConnection` over TLS."""


_ASYNC_CLASSES = {
    Connection: AsyncConnection,
    SecureConnection: AsyncSecureConnection,
    redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
}


def client_options(url: str) -> dict[str, Any]:
    """Return the options of every client of the server at `url`, for code that creates the client itself."""
    options = parse_redis_url(url)
    if "path" in options:
        return {**CLIENT_OPTIONS, **options, "connection_class": redis.UnixDomainSocketConnection}
    kind: type[Any] = SecureConnection if is_encrypted(url, options) else Connection
    return {**CLIENT_OPTIONS, "socket_keepalive_options": TCP_OPTIONS, **options, "connection_class": kind}


def make_client(url: str, **options: Any) -> redis.Redis:
    """Return a client without automatic retries and with short timeouts; `options` override the defaults."""
    return redis.Redis.from_pool(redis.ConnectionPool(**{**client_options(url), **options}))


def make_async_client(url: str, **options: Any) -> redis.asyncio.Redis:
    """Return a client for an event loop, like that of `make_client`."""
    defaults = client_options(url)
    kind = _ASYNC_CLASSES[defaults["connection_class"]]
    retry = AsyncRetry(NoBackoff(), 0)
    pool = redis.asyncio.ConnectionPool(**{**defaults, "retry": retry, **options, "connection_class": kind})
    return redis.asyncio.Redis.from_pool(pool)


def connect(url: str) -> redis.Redis:
    """Return a client that decodes its replies."""
    return make_client(url, decode_responses=True)


def time_of(reply: Sequence[int]) -> datetime:
    """Return the time of the server, by its reply to TIME."""
    unix_seconds, micros = reply
    return EPOCH + timedelta(seconds=unix_seconds, microseconds=micros)


class BestEffortClient:
    """Calls Redis for what may be lost, such as counts: waits briefly, and never raises an error of redis-py.

    After an error, nothing is called for `BEST_EFFORT_PAUSE`. The begin and the end of an outage are logged, and each
    other error.

    Args:
        records: what is recorded, for the log.
    """

    def __init__(self, url: str, *, records: str) -> None:
        self._url, self._records = url, records
        self._client = make_client(url, socket_timeout=BEST_EFFORT_TIMEOUT, socket_connect_timeout=BEST_EFFORT_TIMEOUT)
        self._is_away = False
        self._try_again_at = 0.0

    def attempt(self, call: Callable[[redis.Redis], T]) -> T | None:
        """Return what `call` returns; `None` while Redis is unavailable."""
        if time.monotonic() < self._try_again_at:
            return None
        was_away = self._is_away
        try:
            result = call(self._client)
        except redis.RedisError as error:
            self._is_away, self._try_again_at = isinstance(error, REDIS_OUTAGES), time.monotonic() + BEST_EFFORT_PAUSE
            if not (was_away and self._is_away):
                log.warning(f"{self._records} are not recorded: {describe_outage(self._url, error)}")
            return None
        self._is_away = False
        if was_away:
            log.info(f"{self._records} are recorded again: Redis at {redact_url(self._url)} is back")
        return result


class Script:
    """A Lua script. The server knows it by `sha` once it has run it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = sha1(source.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: Any, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run the script. Raises the errors of redis-py."""
        try:
            return client.evalsha(self.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            return client.eval(self.source, len(keys), *keys, *arguments)
