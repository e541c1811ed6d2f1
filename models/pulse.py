"""Pulses: what an agency is asked for; here only those of type `review_request`.

    {account_id, type, status: pending | in_progress | completed | dismissed …, created_at, updated_at, completed_at?,
     metadata: {subscription_ids, parent_account, oldest_subscription, request_reason}}

Guarantee: of one account, and of one parent, at most one review request is open: unique indexes see to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import ASCENDING, IndexModel, ReturnDocument
from pymongo.collection import Collection
from pymongo.errors import DuplicateKeyError

from models import account
from models.database import Document, collection
from queue_manager.core.settings import settings

REVIEW_REQUEST = "review_request"
OPEN = ["pending", "in_progress"]
_KEYS = ("account_id", "metadata.parent_account")


def pulses() -> Collection[Document]:
    return collection(settings().pulses_collection)


@dataclass(frozen=True, kw_only=True)
class ReviewRequest:
    """What a pulse says of an agency. Ids as the database has them."""

    account_id: Any
    parent_account: Any
    subscription_ids: list[Any]
    oldest_subscription: datetime


def blocking(since: datetime) -> Document:
    """Return the condition on a pulse that keeps its account from being asked again.

    It is open, or it was created or completed after `since`, whatever its status is.
    """
    recently = {"$gt": since}
    return {
        "type": REVIEW_REQUEST,
        "$or": [{"status": {"$in": OPEN}}, {"created_at": recently}, {"completed_at": recently}],
    }


def create(request: ReviewRequest, *, since: datetime, now: datetime) -> str | None:
    """Create a pulse unless one blocks the account or its parent: one statement.

    Returns:
        `None` when it was created, else the status of the one that blocks.
    """
    block = blocking(since)
    same = [
        {"account_id": {"$in": account.spellings(request.account_id)}},
        {"metadata.parent_account": {"$in": account.spellings(request.parent_account)}},
    ]
    pulse = {
        "account_id": account.stored(request.account_id),
        "status": "pending",
        "created_at": now,
        "updated_at": now,
        "metadata": {
            "subscription_ids": request.subscription_ids,
            "parent_account": account.stored(request.parent_account),
            "oldest_subscription": request.oldest_subscription,
            "request_reason": "one_month_active",
        },
    }
    try:
        blocks = pulses().find_one_and_update(
            {"$and": [{"$or": same}, {"$or": block.pop("$or")}], **block},
            {"$setOnInsert": pulse},
            projection={"status": 1},
            upsert=True,
            return_document=ReturnDocument.BEFORE,
        )
    except DuplicateKeyError:
        return OPEN[0]  # another worker came between the look and the insert; the index decided
    return None if blocks is None else str(blocks.get("status"))


def count_open() -> int:
    return pulses().count_documents({"type": REVIEW_REQUEST, "status": {"$in": OPEN}})


def count_created(since: datetime) -> int:
    return pulses().count_documents({"type": REVIEW_REQUEST, "created_at": {"$gte": since}})


def indexes() -> list[IndexModel]:
    unique = [
        IndexModel(
            [(key, ASCENDING)],
            name=f"one_open_review_by_{key.rpartition('.')[2]}",
            unique=True,
            partialFilterExpression={
                "type": REVIEW_REQUEST,
                "status": {"$in": OPEN},
                key: {"$type": ["objectId", "string"]},
            },
        )
        for key in _KEYS
    ]
    lookups = [
        IndexModel([(key, ASCENDING), ("type", ASCENDING)], name=f"pulses_by_{key.rpartition('.')[2]}") for key in _KEYS
    ]
    by_day = IndexModel([("type", ASCENDING), ("created_at", ASCENDING)], name="pulses_by_day")
    return [*unique, *lookups, by_day]


def obstacles() -> list[str]:
    """Return what keeps the unique indexes from being built: accounts with more than one open review request."""
    found = []
    for key in _KEYS:
        open_ones = {"type": REVIEW_REQUEST, "status": {"$in": OPEN}, key: {"$type": ["objectId", "string"]}}
        groups: Any = pulses().aggregate(
            [
                {"$match": open_ones},
                {"$group": {"_id": f"${key}", "ids": {"$push": "$_id"}}},
                {"$match": {"ids.1": {"$exists": True}}},
                {"$limit": 20},
            ]
        )
        found += [
            f"{pulses().name}: {key} {group['_id']} has {len(group['ids'])} open review requests: "
            f"{', '.join(map(str, group['ids']))}"
            for group in groups
        ]
    return found


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`."""
    return {pulses().name: indexes()}
