"""Paused job queues: collection `job_queues`, one document per name: `{_id: name, paused}`."""

from __future__ import annotations

from collections.abc import Iterable

from pymongo import IndexModel, UpdateOne
from pymongo.collection import Collection

from models.database import Document, collection

NAME = "job_queues"


def queues() -> Collection[Document]:
    return collection(NAME)


def collections() -> dict[str, list[IndexModel]]:
    """Return the collections of this module with their indexes, for `migrate`."""
    return {NAME: [IndexModel([("paused", 1)], name="paused_queues", sparse=True)]}


def pause(names: Iterable[str], *, is_paused: bool) -> None:
    """Pause or resume queues, also those without jobs."""
    change = {"$set": {"paused": True}} if is_paused else {"$unset": {"paused": ""}}
    writes = [UpdateOne({"_id": name}, change, upsert=is_paused) for name in names]
    if writes:
        queues().bulk_write(writes, ordered=False)


def paused() -> set[str]:
    """Return the names of the paused queues."""
    return {queue["_id"] for queue in queues().find({"paused": True}, {"_id": 1}, hint="paused_queues")}


def is_paused(name: str) -> bool:
    return queues().find_one({"_id": name, "paused": True}, {"_id": 1}) is not None
