"""Asking MongoDB and Redis while somebody waits for an HTTP answer: bounded, and with one error for both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymongo
import redis
from pymongo.errors import OperationFailure

from models import database
from queue_manager.core.errors import Unavailable as Unavailable
from queue_manager.core.errors import reason
from queue_manager.core.redis_client import PerProcess, make_client
from queue_manager.core.settings import redact_url, settings

MONGO_PATIENCE = 2.5  # seconds for everything asked in one `mongodb()`
REDIS_PATIENCE = 2.0  # seconds for each command

_client = PerProcess(lambda: make_client(settings().redis_url, decode_responses=True, socket_timeout=REDIS_PATIENCE))


@contextmanager
def mongodb() -> Iterator[None]:
    """Limit the total time of MongoDB calls in the block. Raises `Unavailable` for errors of the driver."""
    try:
        with pymongo.timeout(MONGO_PATIENCE):
            yield
    except OperationFailure as error:
        raise Unavailable(_refused(error)) from error
    except database.Error as error:
        url = redact_url(settings().mongo_db_url)
        raise Unavailable(f"MongoDB at {url} does not answer ({reason(error)})") from error


def _refused(error: OperationFailure) -> str:
    if "hint provided does not correspond to an existing index" in str(error):
        return "An index is missing in MongoDB: run `queue-manager migrate` while its system is switched on"
    return f"MongoDB refused what it was asked ({reason(error):.300})"


@contextmanager
def redis_server() -> Iterator[redis.Redis]:
    """Yield a Redis client with short timeouts. Raises `Unavailable` for its errors in the block."""
    try:
        yield _client()
    except redis.RedisError as error:
        url = redact_url(settings().redis_url)
        raise Unavailable(f"Redis at {url} does not answer ({reason(error)})") from error


def ping_mongodb() -> None:
    """Raises `Unavailable`."""
    with mongodb():
        database.database().command("ping")
