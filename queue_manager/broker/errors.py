"""Errors after which a worker reconnects instead of exiting: Celery handles them as a lost connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError

from queue_manager.core.errors import reason


class ConnectionLost(RedisConnectionError):
    """The channel's connection is closed and will not be reopened; a reconnect makes another channel."""


class BrokerRefuses(RedisConnectionError):
    """The server answers, but refuses a command: its memory is full, it became a replica, or its disk fails."""


@contextmanager
def refusals_as_connection_errors(*, but: tuple[type[ResponseError], ...] = ()) -> Iterator[None]:
    """Raise a connection error instead of an error that would end the worker, except for the types in `but`.

    Raises:
        BrokerRefuses: instead of a `ResponseError`.
        ConnectionLost: the peer, such as a proxy, sends something that is not a reply of Redis.
    """
    try:
        yield
    except but:
        raise
    except ResponseError as error:
        raise BrokerRefuses(f"Redis refuses: {reason(error)}") from error
    except InvalidResponse as error:
        raise ConnectionLost(f"the server sent an invalid reply: {error}") from error
