"""Redis clients and scripts; and `PerProcess`, which gives each process a client of its own, of any server."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha1
from threading import Lock
from typing import Any, Generic, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterDownError, MasterDownError, NoScriptError, ReadOnlyError
from redis.retry import Retry

Client = TypeVar("Client")

RedisError = redis.RedisError
"""Base of every error of redis-py."""
REDIS_OUTAGES = (redis.ConnectionError, redis.TimeoutError)
"""Errors of redis-py while the server is away."""

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


class PerProcess(Generic[Client]):
    """Creates one client per process, on first use, and never shares it with a forked child. Thread-safe."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._made: list[Client] = []
        self._lock = Lock()
        # A child forked while another thread holds the lock would wait for it forever.
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self) -> Client:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    def take(self) -> Client | None:
        """Return the client, if there is one, and remove it; the next use creates another."""
        with self._lock:
            return self._made.pop() if self._made else None

    def _forget(self) -> None:
        self._made, self._lock = [], Lock()


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
