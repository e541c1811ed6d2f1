"""The one way to MongoDB: a client per process, the server's clock, and the indexes that `migrate` creates.

Guarantee: a client is never used across a fork; opening one waits for nothing. Errors of the driver reach the
caller unchanged: an errored write may have been applied, so every write here is guarded by a condition.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import DatetimeConversion, ObjectId
from bson.codec_options import CodecOptions
from pymongo import IndexModel, MongoClient, timeout
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import ConfigurationError as DriverConfigurationError
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from queue_manager.core.clock import ServerClock
from queue_manager.core.errors import ConfigurationError, PermanentError
from queue_manager.core.per_process import PerProcess
from queue_manager.core.settings import masked, settings

Document = dict[str, Any]
Error = PyMongoError
"""Whatever the driver raises."""
OUTAGES = (ConnectionFailure,)
"""What it raises while the server is away."""

_AUTHENTICATION_FAILED = (13, 18)
_NOT_AUTHORIZED = 13
_INDEX_DIFFERS = (85, 86)
# Clamped: one date of the year 300,000 must not make the documents around it unreadable.
_CODEC: CodecOptions[Document] = CodecOptions(
    tz_aware=True, tzinfo=UTC, datetime_conversion=DatetimeConversion.DATETIME_CLAMP
)


def _open() -> MongoClient[Document]:
    atexit.register(close)
    return MongoClient(
        settings().mongo_db_url,
        appname="queue-manager",
        maxPoolSize=settings().qm_worker_concurrency + 2,
        serverSelectionTimeoutMS=5_000,
        connectTimeoutMS=5_000,
        socketTimeoutMS=30_000,
        waitQueueTimeoutMS=10_000,
        # Also where the deployment's own defaults are others: a claim must survive a fail-over, and is read back.
        w="majority",
        readPreference="primary",
    )


client = PerProcess(_open)
_clock = PerProcess(lambda: ServerClock(lambda: client().admin.command("hello")["localTime"].replace(tzinfo=UTC)))


@contextmanager
def within(span: timedelta) -> Iterator[None]:
    """Wait for the database for `span` at the most, for everything asked inside."""
    with timeout(span.total_seconds()):
        yield


def close() -> None:
    """Close this process's client; the next use opens another."""
    _clock.take()
    if (opened := client.take()) is not None:
        opened.close()


def database() -> Database[Document]:
    """Return the database that the path of `MONGO_DB_URL` names."""
    return client().get_default_database(codec_options=_CODEC)


def collection(name: str) -> Collection[Document]:
    return database()[name]


def server_now() -> datetime:
    """Return the database server's time: the clock by which everything is judged due."""
    return _clock().now()


def value_at(document: Document, path: str) -> Any:
    """Return the value at a dotted path through documents; `None` where it leads nowhere."""
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def object_id(value: Any, *, field: str) -> ObjectId:
    """Read an id from its 24 hexadecimal digits. Raises PermanentError, which names `field` and the value."""
    # ObjectId() would make a new id of None.
    if not isinstance(value, str) or not ObjectId.is_valid(value):
        raise PermanentError(f"{field}: {value!r:.100} is not an ObjectId (24 hexadecimal digits)")
    return ObjectId(value)


def require_replica_set() -> None:
    """Refuse a standalone server, which loses acknowledged writes when it is killed, and wrong credentials.

    Raises:
        ConfigurationError: the server is no member of a replica set, does not let us in, or its SRV name is unknown.
        ConnectionFailure: the server is away.
    """
    url = masked(settings().mongo_db_url)
    try:
        hello = client().admin.command("hello")
        database().command("ping")
    except DriverConfigurationError as error:  # the driver looks up a mongodb+srv:// name when it makes the client
        raise ConfigurationError(f"MongoDB at {url} cannot be used: {error}") from error
    except OperationFailure as error:
        if error.code not in _AUTHENTICATION_FAILED:
            raise
        raise ConfigurationError(f"MongoDB at {url} refuses our credentials ({error.details or error})") from error
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise ConfigurationError(
            f"MongoDB at {url} is a standalone server, which loses acknowledged writes in a crash: accepted is a "
            "replica set, also of one node (start mongod with --replSet and initiate it)"
        )


@contextmanager
def rights_to_migrate() -> Iterator[None]:
    """Translate a refusal for lack of rights into a `ConfigurationError`."""
    try:
        yield
    except OperationFailure as error:
        if error.code != _NOT_AUTHORIZED:
            raise
        raise ConfigurationError(
            f"MongoDB at {masked(settings().mongo_db_url)} does not let this user create indexes: it needs the role "
            f"readWrite on the database {database().name!r}"
        ) from error


def create_indexes(wanted: Mapping[str, Sequence[IndexModel]]) -> list[str]:
    """Create what is missing, per collection, and build anew what differs; return `collection.index`. Repeatable."""
    return [f"{name}.{_create(name, index)}" for name, indexes in wanted.items() for index in indexes]


def _create(name: str, index: IndexModel) -> str:
    try:
        (created,) = collection(name).create_indexes([index])
    except OperationFailure as error:
        if error.code not in _INDEX_DIFFERS:
            raise
        collection(name).drop_index(index.document["name"])
        (created,) = collection(name).create_indexes([index])
    return created
