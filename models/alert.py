"""Alerts: collection `qm_alerts`, one document per problem that was sent; and their silences, `qm_alert_silences`.

    qm_alerts          {_id: {system, rule}, sent_at?, text, is_unsent?, ended_at?}
    qm_alert_silences  {_id: {system, rule}, until, by, reason}

A process claims what it sends, a problem or its end, for a minute. If it dies before a channel took it, another process
sends it. `is_unsent` is true until a channel took the problem for the first time.

Guarantee: of several processes that want to send the same at the same time, one may.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pymongo import IndexModel
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models.database import Document, collection
from models.malformed import readable, typed
from queue_manager.core.clock import minutes

ALERTS_COLLECTION, SILENCES_COLLECTION = "qm_alerts", "qm_alert_silences"
CLAIM_TIME = minutes(1)  # longer than it takes to send


class Key(NamedTuple):
    """A problem: there is at most one for each system and rule."""

    system: str
    rule: str


class Silence(NamedTuple):
    key: Key
    until: datetime
    by: str
    reason: str


ALERT_INDEXES = {SILENCES_COLLECTION: [IndexModel("until", name="silence_ended", expireAfterSeconds=0)]}


def may_send(key: Key, text: str, *, repeat: timedelta, now: datetime, is_recorded: bool = False) -> bool:
    """Claim a problem for `CLAIM_TIME`, to send it and to call `confirm_sent` or `release`.

    Return False if it was sent within `repeat` or is claimed, by whichever process; with `is_recorded`, also if its
    record was deleted meanwhile.
    """
    claimed = {"sent_at": now - max(repeat - CLAIM_TIME, timedelta(0)), "text": text}
    # A time far in the future, or a value that is not a date, must not keep a problem from being sent.
    was_sent = {"sent_at": {"$gt": now - repeat, "$lte": now + CLAIM_TIME}}
    try:
        changed = _alerts().update_one(
            {"_id": _id(key), "$nor": [was_sent]},
            {"$set": claimed, "$setOnInsert": {"is_unsent": True}},
            upsert=not is_recorded,
        )
    except DuplicateKeyError:
        return False  # it exists, with a later time
    return bool(changed.matched_count or changed.upserted_id)


def confirm_sent(keys: Iterable[Key], now: datetime) -> None:
    """Record that claimed problems were sent now, except those that have ended meanwhile."""
    sent = {"$set": {"sent_at": now}, "$unset": {"is_unsent": ""}}
    _alerts().update_many({"_id": {"$in": [_id(key) for key in keys]}}, sent)


def release(keys: Iterable[Key]) -> None:
    """Let the next round of any process send claimed problems; forget those that were never sent."""
    ids = [_id(key) for key in keys]
    _alerts().delete_many({"_id": {"$in": ids}, "is_unsent": True})
    _alerts().update_many({"_id": {"$in": ids}}, {"$unset": {"sent_at": ""}})


def may_send_end(key: Key, now: datetime) -> bool:
    """Claim the end of a problem for `CLAIM_TIME`, to send it and to call `delete`.

    Return False if it has no record, or if another process claimed its end.
    """
    is_claimed = {"ended_at": {"$gt": now - CLAIM_TIME, "$lte": now + CLAIM_TIME}}
    claimed = _alerts().update_one({"_id": _id(key), "$nor": [is_claimed]}, {"$set": {"ended_at": now}})
    return claimed.matched_count > 0


def release_ends(keys: Iterable[Key]) -> None:
    """Let the next round of any process send these ends."""
    _alerts().update_many({"_id": {"$in": [_id(key) for key in keys]}}, {"$unset": {"ended_at": ""}})


def delete(keys: Iterable[Key]) -> None:
    """Delete the records of problems whose end was sent."""
    _alerts().delete_many({"_id": {"$in": [_id(key) for key in keys]}})


def sent() -> dict[Key, str]:
    """Return the texts of the problems that were sent and have not ended."""
    return dict(readable(_alerts().find(), read_sent, of=ALERTS_COLLECTION))


def read_sent(found: Document) -> tuple[Key, str]:
    """Return a problem that was sent, and its text."""
    return _key(found), str(found["text"])


def silence(key: Key, *, until: datetime, by: str, reason: str) -> None:
    """Send nothing about a problem until this time."""
    _silences().update_one({"_id": _id(key)}, {"$set": {"until": until, "by": by, "reason": reason}}, upsert=True)


def unsilence(key: Key) -> bool:
    """End a silence; return whether there was one."""
    return _silences().delete_one({"_id": _id(key)}).deleted_count > 0


def silences(now: datetime) -> Iterator[Silence]:
    """Yield the silences, the first to end first."""
    found = _silences().find({"until": {"$gt": now}}).sort("until")
    yield from readable(found, read_silence, of=SILENCES_COLLECTION)


def _id(key: Key) -> Document:
    return {"system": key.system, "rule": key.rule}


def _key(document: Document) -> Key:
    return Key(typed(document["_id"], "system", str), typed(document["_id"], "rule", str))


def read_silence(found: Document) -> Silence:
    return Silence(
        _key(found), typed(found, "until", datetime), by=typed(found, "by", str), reason=typed(found, "reason", str)
    )


def _alerts() -> Collection[Any]:
    return collection(ALERTS_COLLECTION)


def _silences() -> Collection[Any]:
    return collection(SILENCES_COLLECTION)
