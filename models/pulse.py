"""Pulses, the requests to agencies; this module handles only the type `review_request`.

    {account_id, type, status: pending | in_progress | completed | dismissed …, created_at, updated_at, completed_at?,
     metadata: {subscription_ids, parent_account, oldest_subscription, request_reason}}

Guarantee: at most one review request is open per account and per parent account, by unique indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import DESCENDING, IndexModel, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError

from models import account
from models.database import Document, collection, duplicates, value_at
from models.due_documents import A_DATE
from queue_manager.core.settings import settings

REVIEW_REQUEST = "review_request"
OPEN = ["pending", "in_progress"]
_KEYS = ("account_id", "metadata.parent_account")
_USABLE = {"$type": ["objectId", "string"]}
MAX_NAMED_GROUPS = 20
MAX_SHOWN_REQUESTS = 20  # of one agency


def pulses() -> Collection[Document]:
    return collection(settings().pulses_collection)


@dataclass(frozen=True, kw_only=True)
class Agency:
    """An agency and its managed subscriptions; `account_id` is `None` if the oldest of them has no usable one.

    They have the same parent account, as an ObjectId or a text; without a parent, the same account.
    """

    account_id: Any
    parent_account: Any
    subscription_ids: list[Any]
    oldest_subscription: datetime


def blocking(since: datetime) -> Document:
    """Return the condition on a pulse that blocks another agency.

    It is open, or it was created or completed after `since`, regardless of its status.
    """
    recently = {"$gt": since}
    return {
        "type": REVIEW_REQUEST,
        "$or": [{"status": {"$in": OPEN}}, {"created_at": recently}, {"completed_at": recently}],
    }


def create(agencies: Sequence[Agency], *, since: datetime, now: datetime) -> list[str | None]:
    """Create a pulse for each agency unless another blocks its account or parent account.

    Each is one statement; all are one write, with one read if some are blocked.

    Returns:
        `None` for each that was created, else the status of the blocking pulse; of several, that of an open one.
    """
    if not agencies:
        return []
    statements = [UpdateOne(_blocking([one], since), _new(one, now), upsert=True) for one in agencies]
    refused: set[int] = set()
    try:
        created = pulses().bulk_write(statements, ordered=False).upserted_ids or {}
    except BulkWriteError as error:
        refused = {*duplicates(error)}  # by the unique index: another worker inserted meanwhile
        created = {one["index"]: one["_id"] for one in error.details["upserted"]}
    blocked = [number for number in range(len(agencies)) if number not in created and number not in refused]
    statuses = _statuses([agencies[number] for number in blocked], since)
    outcomes: list[str | None] = [OPEN[0] if number in refused else None for number in range(len(agencies))]
    for number, status in zip(blocked, statuses, strict=True):
        outcomes[number] = status
    return outcomes


def _statuses(agencies: Sequence[Agency], since: datetime) -> list[str]:
    """Return the current status of the pulse that blocks each agency; it may have changed or been deleted."""
    if not agencies:
        return []
    found = list(pulses().find(_blocking(agencies, since), {"status": 1, **dict.fromkeys(_KEYS, 1)}))
    statuses = []
    for agency in agencies:
        accounts, parents = map(account.spellings, (agency.account_id, agency.parent_account))
        of_this = [
            str(one.get("status"))
            for one in found
            if one.get("account_id") in accounts or value_at(one, "metadata.parent_account") in parents
        ]
        statuses.append(next((status for status in of_this if status in OPEN), next(iter(of_this), "gone")))
    return statuses


def _blocking(agencies: Sequence[Agency], since: datetime) -> Document:
    """Return the condition on a pulse that blocks one of the agencies."""
    return {"$and": [_addressed_to(agencies), blocking(since)]}


def _addressed_to(agencies: Sequence[Agency]) -> Document:
    """Return the condition on a pulse that it has the account or the parent account of one of the agencies."""
    accounts = [one for of in agencies for one in account.spellings(of.account_id)]
    parents = [one for of in agencies for one in account.spellings(of.parent_account)]
    return {"$or": [{"account_id": {"$in": accounts}}, {"metadata.parent_account": {"$in": parents}}]}


def _new(agency: Agency, now: datetime) -> Document:
    """Return the upsert that creates the pulse."""
    pulse = {
        "account_id": account.stored(agency.account_id),
        "status": "pending",
        "created_at": now,
        "updated_at": now,
        "metadata": {
            "subscription_ids": agency.subscription_ids,
            "parent_account": account.stored(agency.parent_account),
            "oldest_subscription": agency.oldest_subscription,
            "request_reason": "one_month_active",
        },
    }
    return {"$setOnInsert": pulse}


def of_agency(agency: Agency) -> list[Document]:
    """Return the latest review requests to an agency's account or parent account, newest first."""
    where = {"type": REVIEW_REQUEST, "created_at": A_DATE, **_addressed_to([agency])}
    return list(pulses().find(where, sort=[("created_at", DESCENDING)], limit=MAX_SHOWN_REQUESTS))


def count_open() -> int:
    """Count the open requests with a usable account or parent account, by the unique indexes: others block nobody."""
    account_id, parent_account = _KEYS
    by_account = _open(account_id)
    by_parent_only = {**_open(parent_account), account_id: {"$not": _USABLE}}
    return sum(
        pulses().count_documents(where, hint=_unique_index(key))
        for key, where in ((account_id, by_account), (parent_account, by_parent_only))
    )


def _open(key: str) -> Document:
    """Return the condition of the unique index of a key."""
    return {"type": REVIEW_REQUEST, "status": {"$in": OPEN}, key: _USABLE}


def _unique_index(key: str) -> str:
    return f"one_open_review_by_{key.rpartition('.')[2]}"


def count_created(since: datetime) -> int:
    return pulses().count_documents({"type": REVIEW_REQUEST, "created_at": {"$gte": since}})


def collections() -> dict[str, list[IndexModel]]:
    unique = [
        IndexModel(
            key,
            name=_unique_index(key),
            unique=True,
            partialFilterExpression=_open(key),
        )
        for key in _KEYS
    ]
    lookups = [IndexModel([key, "type"], name=f"pulses_by_{key.rpartition('.')[2]}") for key in _KEYS]
    by_day = IndexModel(["type", "created_at"], name="pulses_by_day")
    return {pulses().name: [*unique, *lookups, by_day]}


def obstacles() -> list[str]:
    """Return the accounts with several open review requests, which prevent the unique indexes.

    Names the first `MAX_NAMED_GROUPS` per index, and the number of the others.
    """
    found = []
    for key in _KEYS:
        groups: Any = pulses().aggregate(
            [
                {"$match": _open(key)},
                {"$group": {"_id": f"${key}", "ids": {"$push": "$_id"}}},
                {"$match": {"ids.1": {"$exists": True}}},
                {"$facet": {"some": [{"$limit": MAX_NAMED_GROUPS}], "all": [{"$count": "groups"}]}},
            ]
        )
        (counted,) = groups
        found += [
            f"{pulses().name}: {key} {group['_id']} has {len(group['ids'])} open review requests: "
            f"{', '.join(map(str, group['ids']))}"
            for group in counted["some"]
        ]
        count = sum(one["groups"] for one in counted["all"])
        if count > MAX_NAMED_GROUPS:
            found.append(f"{pulses().name}: {key}: {count - MAX_NAMED_GROUPS} more, {count} in total")
    return found
