"""Access to MongoDB: a client per process, the server's clock, and what documents are made of.

Guarantee: a client is never used across a fork, and creating one does not connect. Errors of the driver are raised
unchanged. A write that raised may have been applied, so all writes are conditional.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, cast

import bson
from bson import DatetimeConversion
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient, MongoClient, UpdateOne, timeout
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
    WriteError,
)
from pymongo.errors import ConfigurationError as DriverConfigurationError
from pymongo.monitoring import CommandListener

from queue_manager.core.clock import Pace, ServerClock, seconds
from queue_manager.core.errors import LOGGED_OUT, ConfigurationError, reason, unavailable_server
from queue_manager.core.log import get_logger
from queue_manager.core.process import PerProcess
from queue_manager.core.settings import redact_url, settings
from queue_manager.core.wording import first_ids

log = get_logger("QM/database")

Document = dict[str, Any]
Error = PyMongoError
"""Base of all errors of the driver."""

APP_NAME = "queue-manager"
DUPLICATE_KEY = 11_000  # MongoDB's code for a document that a unique index refuses
CLOCK_TIMEOUT = seconds(5)
MAX_PINGS = 4
CONNECT_TIMEOUT = 2.0  # seconds; a member that starts accepts connections and does not answer on them
# Seconds between two checks of a member. Operations leave one that was silent for this long and the limit above.
HEARTBEAT = 3.0
LOGIN_REFUSED = 18  # MongoDB's code
_FORBIDDEN = (13, LOGIN_REFUSED)
# A date in the year 300,000, or a text that is not UTF-8, must not make a whole batch unreadable.
_CODEC: CodecOptions[Document] = CodecOptions(
    tz_aware=True,
    tzinfo=UTC,
    datetime_conversion=DatetimeConversion.DATETIME_CLAMP,
    unicode_decode_error_handler="replace",
)


# Explicit, not the defaults of the deployment: a write must survive a failover and be readable.
_CLIENT_OPTIONS: dict[str, Any] = {"appname": APP_NAME, "w": "majority", "readPreference": "primary"}


def _open() -> MongoClient[Document]:
    atexit.register(close)
    return MongoClient(
        settings().mongo_db_url,
        event_listeners=_listeners(),
        serverSelectionTimeoutMS=5_000,
        connectTimeoutMS=int(CONNECT_TIMEOUT * 1_000),
        heartbeatFrequencyMS=int(HEARTBEAT * 1_000),
        socketTimeoutMS=30_000,
        waitQueueTimeoutMS=10_000,
        **_CLIENT_OPTIONS,
    )


def _listeners() -> list[CommandListener]:
    if not settings().qm_tracing:
        return []
    from models.command_spans import CommandSpans  # needs the extra `otel`

    return [CommandSpans()]


def open_async(**options: Any) -> AsyncMongoClient[Document]:
    """Return a new client for an event loop."""
    return AsyncMongoClient(settings().mongo_db_url, **_CLIENT_OPTIONS, **options)


client = PerProcess(_open)
_replaced = PerProcess[list[MongoClient[Document]]](list)
_replacements = Pace(seconds(10))  # because errors of the client that was replaced come later, too


def _read_clock() -> datetime:
    with within(CLOCK_TIMEOUT):
        local_time: datetime = client().admin.command("hello")["localTime"]
    return local_time.replace(tzinfo=UTC)


_clock = ServerClock(_read_clock)
_ends_at = ContextVar("ends_at", default=inf)
"""The end of the time limit for database operations, in seconds of the monotonic clock."""


@contextmanager
def within(span: timedelta) -> Iterator[None]:
    """Limit the total time of the database operations in the block; a longer limit inside of it has no effect."""
    token = _ends_at.set(min(_ends_at.get(), time.monotonic() + span.total_seconds()))
    try:
        with timeout(span.total_seconds()):
            yield
    finally:
        _ends_at.reset(token)


def is_time_over() -> bool:
    """Return True if the limit of any enclosing `within` is over."""
    return time.monotonic() > _ends_at.get()


def close() -> None:
    """Close the client of this process; the next use creates another."""
    if (opened := client.take()) is not None:
        opened.close()
    for replaced in _replaced.take() or ():
        replaced.close()


def is_outage(error: BaseException) -> bool:
    """Return True for errors of the driver while the server is unavailable, or has lost its majority."""
    leave_if_logged_out(error)
    return unavailable_server(error) == "MongoDB"


def leave_if_logged_out(error: BaseException) -> None:
    """Replace the client of this process if the server has logged out its connections, because their user was deleted.

    The driver would go on to use them when the user exists again.
    """
    if is_logged_out(error) and _replacements.allows() and (logged_out := client.take()) is not None:
        replaced = _replaced()
        while replaced:
            replaced.pop().close()
        replaced.append(logged_out)  # closed later, because other threads use it


def is_logged_out(error: object) -> bool:
    """Return True if the server has logged out a connection: for good, even if its user is created again."""
    return isinstance(error, OperationFailure) and LOGGED_OUT in str(error)


def is_forbidden(error: object) -> bool:
    """Return True if MongoDB refused the credentials, or the command to this user."""
    is_refusal = isinstance(error, OperationFailure) and error.code in _FORBIDDEN
    return is_refusal or is_login_refused(error)


def is_login_refused(error: object) -> bool:
    """Return True if MongoDB refused the credentials, or has deleted their user.

    After that, the driver does not select the server until its next heartbeat, and only the topology has the cause.
    """
    causes = [error]
    if isinstance(error, AutoReconnect):
        causes = [one.error for one in client().topology_description.server_descriptions().values()]
    refusals = [one for one in causes if isinstance(one, OperationFailure)]
    return any(one.code == LOGIN_REFUSED or is_logged_out(one) for one in refusals)


def describe(error: PyMongoError) -> str:
    """Return a readable sentence about an error of the driver, without the driver's details."""
    url = redact_url(settings().mongo_db_url)
    if isinstance(error, WriteConcernError) or (error.timeout and isinstance(error, OperationFailure)):
        return f"MongoDB at {url} did not confirm the command, which may have been applied ({reason(error):.300})"
    if isinstance(error, BulkWriteError) and not (error.details or {}).get("writeErrors"):
        return f"MongoDB at {url} did not confirm the writes, which may have been applied ({reason(error):.300})"
    if not isinstance(error, OperationFailure):
        return f"MongoDB at {url} does not answer ({reason(error):.300})"
    if (text := reason(error)).startswith("an index of "):
        return f"{text[0].upper()}{text[1:]}"
    return f"MongoDB at {url} refused the command ({text:.300})"


def duplicates(error: BulkWriteError) -> dict[int, list[str]]:
    """Return the positions of documents that a unique index refused, each with the fields of the index.

    Raises the error if there is another: documents that no majority has confirmed may be rolled back.
    """
    details = error.details or {}
    if details["writeConcernErrors"] or any(one["code"] != DUPLICATE_KEY for one in details["writeErrors"]):
        raise error
    return {one["index"]: [*one["keyPattern"]] for one in details["writeErrors"]}


def database() -> Database[Document]:
    """Return the database that the path of `MONGO_DB_URL` names."""
    return client().get_default_database(codec_options=_CODEC)


def collection(name: str) -> Collection[Document]:
    """Return a collection of that database. Reads return datetimes in UTC; a majority confirms writes."""
    return database()[name]


def server_now() -> datetime:
    """Return the time of the database server, by which due times are judged."""
    return _clock.now()


def estimated_now() -> datetime:
    """Return the database server's time by the latest sample, without waiting for the server."""
    return _clock.estimate()


def value_at(document: Document, path: str) -> Any:
    """Return the value at a dotted path through documents; `None` if there is none."""
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def projection(paths: Iterable[str]) -> Document:
    """Return the projection of paths; a path inside another is omitted, because MongoDB refuses both together."""
    unique = dict.fromkeys(paths)
    return {path: 1 for path in unique if not path.startswith(tuple(f"{one}." for one in unique))}


def with_value(document: Document, path: str, value: Any) -> Document:
    """Return a copy of a document with a value at a dotted path through documents."""
    key, _, rest = path.partition(".")
    return {**document, key: with_value(document.get(key, {}), rest, value) if rest else value}


def as_stored(document: Document) -> Document:
    """Return a document as MongoDB stores it: with milliseconds, for example, and with lists instead of tuples."""
    return bson.decode(bson.encode(document), _CODEC)


def first_reply(
    of: Collection[Document], where: Document, *, limit: int, **options: Any
) -> tuple[list[Document], bool]:
    """Return up to `limit` documents, at most one reply of 16 MB, and whether these are all."""
    # The batch is larger than the limit, so that the first reply is the last one unless the documents are large.
    with closing(of.find_raw_batches(where, limit=limit, batch_size=limit + 1, **options)) as replies:
        first = cast(bytes, next(replies, b""))
        return bson.decode_all(first, of.codec_options), not replies.alive


def update_all(of: Collection[Document], where: Document, update: Document | list[Document], *, hint: str) -> int:
    """Update all documents that match, and return their number.

    MongoDB refuses to update documents that would exceed 16 MB or violate a validator. They are logged, and the others
    are updated; the number is then of those that followed the first refusal.
    """
    try:
        return of.update_many(where, update, hint=hint).modified_count
    except WriteError as error:  # at the first refusal; the server does not return what it had updated
        if is_outage(error):
            raise
    ids = [one["_id"] for one in of.find(where, {"_id": 1}, hint=hint)]
    each = [UpdateOne({**where, "_id": id}, update, hint="_id_") for id in ids]
    try:
        return of.bulk_write(each, ordered=False).modified_count if each else 0
    except BulkWriteError as error:
        errors = error.details["writeErrors"]
        if error.details["writeConcernErrors"] or any(is_outage(OperationFailure("", one["code"])) for one in errors):
            raise
        refused = [str(ids[one["index"]]) for one in errors]
        log.warning(
            "MongoDB refused to update some documents",
            collection=of.name,
            documents=len(refused),
            ids=first_ids(refused, len(refused)),
            error=reason(error),
        )
        return int(error.details["nModified"])


def copy_of(value: Any) -> Any:
    """Return a copy of a value of a document, with copies of the documents and lists in it."""
    if type(value) is dict:
        return {name: copy_of(one) for name, one in value.items()}
    return [copy_of(one) for one in value] if type(value) is list else value


def ping() -> None:
    """Wait for an answer of the primary. Raises the errors of the driver."""
    database().command("ping")


def answers(limit: timedelta) -> bool:
    """Return True if the primary answers within `limit`."""
    try:
        with within(limit):
            ping()
    except Error:
        return False
    return True


def _ping_again_if_paused() -> None:
    """Ping, and repeat it if the driver has just paused all connections, so that the error names the cause."""
    for number in range(1, MAX_PINGS + 1):
        try:
            ping()
            return
        except AutoReconnect as error:
            if "pool paused" not in str(error) or number == MAX_PINGS:
                raise


def require_replica_set() -> None:
    """Check that the server is a replica set, because a standalone server loses acknowledged writes when killed.

    Raises:
        ConfigurationError: the server is standalone, refuses the credentials, or its SRV name is unknown.
        Error: the server, or the DNS that has its SRV name, is unavailable.
    """
    url = redact_url(settings().mongo_db_url)
    try:
        hello = client().admin.command("hello")
        _ping_again_if_paused()
    except DriverConfigurationError as error:  # the first command resolves a mongodb+srv:// name
        if is_outage(error):
            raise
        raise ConfigurationError(f"MongoDB at {url} cannot be used: {error}") from error
    except (OperationFailure, AutoReconnect) as error:
        if not is_forbidden(error):
            raise
        raise ConfigurationError(f"MongoDB at {url} refuses our credentials ({reason(error)})") from error
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise ConfigurationError(
            f"MongoDB at {url} is a standalone server, which loses acknowledged writes in a crash; it must be a "
            "replica set, also of one node (start mongod with --replSet and initiate it)"
        )
