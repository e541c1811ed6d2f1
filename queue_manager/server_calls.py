"""Calls of MongoDB, Redis and the broker while a user waits: bounded in time, with one error for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import redis
from kombu import Connection
from kombu.exceptions import BatchPublishError, OperationalError

from models import database
from queue_manager.broker.options import timeouts
from queue_manager.core.clock import seconds
from queue_manager.core.errors import Contended, Unavailable, reason
from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import describe_outage, make_client
from queue_manager.core.settings import redact_url, settings

MONGODB_CALL_TIMEOUT = 2.5  # seconds for all calls within one `mongodb()`
REDIS_CALL_TIMEOUT = 2.0  # seconds for each command

_clients = PerProcess(lambda: cache(partial(make_client, decode_responses=True, socket_timeout=REDIS_CALL_TIMEOUT)))


@contextmanager
def mongodb(limit: float = MONGODB_CALL_TIMEOUT) -> Iterator[None]:
    """Limit the total time of MongoDB calls in the block.

    Raises `Unavailable` for errors of the driver, and if other transactions hold a document.
    """
    try:
        with database.within(seconds(limit)):
            yield
    except Contended as error:
        raise Unavailable(f"{error}; try again") from error
    except database.Error as error:
        database.leave_if_logged_out(error)
        raise Unavailable(database.describe(error)) from error


def ping_mongodb() -> None:
    """Raises `Unavailable`."""
    with mongodb():
        database.ping()


def redis_client(url: str) -> redis.Redis:
    """Return this process's client of a server, with short timeouts. It decodes its replies."""
    return _clients()(url)


@contextmanager
def redis_server() -> Iterator[redis.Redis]:
    """Yield a Redis client with short timeouts. Raises `Unavailable` for its errors in the block."""
    try:
        yield redis_client(settings().redis_url)
    except redis.RedisError as error:
        raise Unavailable(describe_outage(settings().redis_url, error)) from error


@contextmanager
def broker() -> Iterator[Connection]:
    """Yield a new connection to the broker, which does not retry. Raises `Unavailable` for its errors in the block."""
    from tasks import app  # imported here, because it takes a second

    url = settings().broker
    with app.connection_for_write(transport_options=timeouts(url, REDIS_CALL_TIMEOUT)) as connection:
        of_transport = (*connection.connection_errors, *connection.channel_errors)
        try:
            connection.ensure_connection(max_retries=0)
            yield connection
        except (OperationalError, BatchPublishError, *of_transport) as error:
            raise Unavailable(f"The broker at {redact_url(url)} is unavailable ({reason(error)})") from error
