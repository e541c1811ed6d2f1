"""The demo's customers: agencies whose subscription becomes a month old, one or two of them every 20 s.

They answer a request after a while. The oldest agencies beyond 60 leave: their subscription ends, then it and their
pulses are deleted.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import DESCENDING
from pymongo.collection import Collection
from pymongo.database import Database

from models.pulse import OPEN, REVIEW_REQUEST
from queue_manager.core.clock import seconds, truncate
from queue_manager.core.settings import settings

Document = dict[str, Any]

PERIOD = seconds(20)
RETENTION_COUNT = 60  # agencies
PRODUCT = "seo"
_DEMO = {"demo": True}


def start(database: Database[Document], now: datetime) -> None:
    """Insert what a restart would find: agencies to be asked, some that were asked already, some too young.

    The last of those that were asked is due again: its answer is 39 days old.
    """
    month_old = [subscription(now - _days(random.uniform(31, 300))) for _ in range(8)]
    too_young = [subscription(now - _days(random.uniform(1, 25))) for _ in range(4)]
    asked = month_old[:5]
    _pulses(database).insert_many(
        [
            pulse(asked[0], now - _days(50), status="in_progress"),
            pulse(asked[1], now - _days(6), status="pending"),
            pulse(asked[2], now - _days(12), status="dismissed"),
            pulse(asked[3], now - _days(20), status="completed", completed_at=truncate(now - _days(18))),
            pulse(asked[4], now - _days(40), status="completed", completed_at=truncate(now - _days(39))),
        ]
    )
    _subscriptions(database).insert_many([*month_old, *too_young])


def go_on(database: Database[Document], now: datetime) -> None:
    """Let one or two agencies become a month old before the next period, and one of the asked ones answer."""
    new = [subscription(now - _days(30) + PERIOD * random.random()) for _ in range(random.randint(1, 2))]
    _subscriptions(database).insert_many(new)
    _answer_one(database, now)
    clear_up(database)


def subscription(created_at: datetime) -> Document:
    """Return an agency's only subscription; the product keeps its start in Unix seconds."""
    return {
        "account": ObjectId(),
        "status": "active",
        "created_at": int(created_at.timestamp()),
        "plan": {"metadata": {"product_type": PRODUCT}},
        "metadata": {"account_id": ObjectId()},
        **_DEMO,
    }


def pulse(of: Document, created_at: datetime, **fields: Any) -> Document:
    """Return a request that the agency with the subscription `of` got at `created_at`."""
    return {
        "account_id": of["metadata"]["account_id"],
        "type": REVIEW_REQUEST,
        "created_at": truncate(created_at),
        "updated_at": truncate(created_at),
        "metadata": {"parent_account": of["account"], "request_reason": "one_month_active"},
        **fields,
    }


def clear_up(database: Database[Document]) -> None:
    """Let the demo's agencies beyond the newest 60 leave, and delete those that have left with their pulses.

    They leave first and are deleted last, so that none is asked again in between, and what was interrupted is repeated.
    """
    subscriptions, left = _subscriptions(database), {**_DEMO, "status": "canceled"}
    old = subscriptions.find({**_DEMO, "status": "active"}, {"_id": 1}).sort("_id", DESCENDING).skip(RETENTION_COUNT)
    subscriptions.update_many({"_id": {"$in": [one["_id"] for one in old]}, **_DEMO}, {"$set": left})
    gone = list(subscriptions.find(left, {"metadata.account_id": 1}))
    _pulses(database).delete_many({"account_id": {"$in": [one["metadata"]["account_id"] for one in gone]}})
    subscriptions.delete_many({"_id": {"$in": [one["_id"] for one in gone]}, **left})


def _answer_one(database: Database[Document], now: datetime) -> None:
    accounts = _subscriptions(database).distinct("metadata.account_id", _DEMO)
    asked = {"type": REVIEW_REQUEST, "status": {"$in": OPEN}, "account_id": {"$in": accounts}}
    status = random.choice(["completed", "dismissed"])
    _pulses(database).update_one(
        {**asked, "created_at": {"$lte": now - PERIOD}},
        {"$set": {"status": status, "completed_at": truncate(now), "updated_at": truncate(now)}},
    )


def _subscriptions(database: Database[Document]) -> Collection[Document]:
    return database[settings().subscriptions_collection]


def _pulses(database: Database[Document]) -> Collection[Document]:
    return database[settings().pulses_collection]


def _days(amount: float) -> timedelta:
    return timedelta(days=amount)
