"""The one way to MongoDB: a client per process, the server's clock, and the indexes that `migrate` creates.

Guarantee: a client is never used across a fork; opening one waits for nothing. Errors of the driver reach the
caller unchanged: an errored write may have been applied, so every write here is guarded by a condition.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bson.codec_options import CodecOptions
from pymongo import IndexModel, MongoClient
from pymongo.collection import Collection
from pymongo.database import Database

from queue_manager.core.clock import ServerClock
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import masked, settings

Document = dict[str, Any]
Filter = Mapping[str, Any]

_CODEC: CodecOptions[Document] = CodecOptions(tz_aware=True, tzinfo=UTC)
_clients: dict[int, MongoClient[Document]] = {}
_clocks: dict[int, ServerClock] = {}


def client() -> MongoClient[Document]:
    """Return this process's client, made at its first use."""
    process = os.getpid()
    if process not in _clients:
        _clients[process] = MongoClient(
            settings().mongo_db_url,
            appname="queue-manager",
            maxPoolSize=settings().qm_worker_concurrency + 2,
            serverSelectionTimeoutMS=5_000,
            connectTimeoutMS=5_000,
            socketTimeoutMS=30_000,
            waitQueueTimeoutMS=10_000,
        )
        atexit.register(close)
    return _clients[process]


def close() -> None:
    """Close this process's client; the next use opens another."""
    _clocks.pop(os.getpid(), None)
    if (opened := _clients.pop(os.getpid(), None)) is not None:
        opened.close()


def database() -> Database[Document]:
    """Return the database that the path of `MONGO_DB_URL` names."""
    return client().get_default_database(codec_options=_CODEC)


def collection(name: str) -> Collection[Document]:
    return database()[name]


def server_now() -> datetime:
    """Return the database server's time: the clock by which everything is judged due."""
    process = os.getpid()
    if process not in _clocks:
        _clocks[process] = ServerClock(lambda: client().admin.command("hello")["localTime"].replace(tzinfo=UTC))
    return _clocks[process].now()


def require_replica_set() -> None:
    """Refuse a standalone server: it loses acknowledged writes when it is killed.

    Raises:
        ConfigurationError: the server is no member of a replica set.
        PyMongoError: the server is away.
    """
    hello = client().admin.command("hello")
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise ConfigurationError(
            f"MongoDB at {masked(settings().mongo_db_url)} is a standalone server, which loses acknowledged writes in "
            "a crash: accepted is a replica set, also of one node (start mongod with --replSet and initiate it)"
        )


def create_indexes(wanted: Mapping[str, Sequence[IndexModel]]) -> list[str]:
    """Create what is missing, per collection; return the names as `collection.index`. Safe to repeat."""
    return [f"{name}.{index}" for name, indexes in wanted.items() for index in collection(name).create_indexes(indexes)]
