"""Alerts: collection `qm_alerts`, one document per problem that was sent; and their silences, `qm_alert_silences`.

    qm_alerts          {_id: {system, rule}, sent_at, text}
    qm_alert_silences  {_id: {system, rule}, until, by, reason}

Guarantee: of several processes that want to send the same at the same time, one may.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pymongo import ASCENDING, IndexModel
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models.database import Document, collection

ALERTS_COLLECTION, SILENCES_COLLECTION = "qm_alerts", "qm_alert_silences"


class Key(NamedTuple):
    """A problem: there is at most one for each system and rule."""

    system: str
    rule: str


class Silence(NamedTuple):
    key: Key
    until: datetime
    by: str
    reason: str


def collections() -> dict[str, list[IndexModel]]:
    """Return the collections of this module with their indexes, for `migrate`. Silences that ended are deleted."""
    ended = IndexModel([("until", ASCENDING)], name="silence_ended", expireAfterSeconds=0)
    return {SILENCES_COLLECTION: [ended]}


def may_send(key: Key, text: str, *, repeat: timedelta, now: datetime) -> bool:
    """Record that a problem is sent now. Return False if it was sent within `repeat`, by whichever process."""
    try:
        changed = _alerts().update_one(
            {"_id": _id(key), "sent_at": {"$lte": now - repeat}}, {"$set": {"sent_at": now, "text": text}}, upsert=True
        )
    except DuplicateKeyError:
        return False  # it is there, with a later time
    return bool(changed.matched_count or changed.upserted_id)


def end(key: Key) -> bool:
    """Delete the record of a problem. Return True to the one process that deleted it."""
    return _alerts().delete_one({"_id": _id(key)}).deleted_count > 0


def sent() -> dict[Key, str]:
    """Return the texts of the problems that were sent and have not ended."""
    return {_key(document): str(document["text"]) for document in _alerts().find()}


def silence(key: Key, *, until: datetime, by: str, reason: str) -> None:
    """Send nothing about a problem until then."""
    _silences().update_one({"_id": _id(key)}, {"$set": {"until": until, "by": by, "reason": reason}}, upsert=True)


def unsilence(key: Key) -> bool:
    """End a silence; return whether there was one."""
    return _silences().delete_one({"_id": _id(key)}).deleted_count > 0


def silences(now: datetime) -> Iterator[Silence]:
    """Yield the silences, the first to end first."""
    for found in _silences().find({"until": {"$gt": now}}).sort("until", ASCENDING):
        yield Silence(_key(found), found["until"], found["by"], found["reason"])


def _id(key: Key) -> Document:
    return {"system": key.system, "rule": key.rule}


def _key(document: Document) -> Key:
    return Key(document["_id"]["system"], document["_id"]["rule"])


def _alerts() -> Collection[Any]:
    return collection(ALERTS_COLLECTION)


def _silences() -> Collection[Any]:
    return collection(SILENCES_COLLECTION)
