"""Subscriptions, written by the product and only read here.

    {account, status, created_at, plan: {metadata: {product_type}}, metadata: {account_id}}

`account` is the parent, `metadata.account_id` the agency itself. `created_at` is Unix seconds or a date; a number
above 1e11 would be milliseconds: such a subscription, like one without a start, is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pymongo
from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.collection import Collection

from models import account, pulse
from models.database import Document, collection
from models.due_documents import A_DATE
from models.listing import NoPosition
from queue_manager.core.clock import truncate
from queue_manager.core.settings import settings

MILLISECONDS_FROM = 1e11  # as seconds that would be the year 5138
_IS_A_DATE: Document = {"$eq": [{"$type": "$created_at"}, "date"]}
_WITHIN_REASON: Document = {"$and": [{"$gte": ["$created_at", 0]}, {"$lte": ["$created_at", MILLISECONDS_FROM]}]}
_READABLE: Document = {
    "$or": [{"created_at": A_DATE}, {"created_at": {"$gte": 0, "$lte": MILLISECONDS_FROM}}],
    "created_at.0": None,  # no list
}
_STARTED: Document = {
    "$switch": {
        "branches": [
            {
                "case": {"$and": [_IS_A_DATE, {"$gte": ["$created_at", A_DATE["$gte"]]}]},
                "then": "$created_at",
            },
            {
                "case": {"$and": [{"$isNumber": "$created_at"}, _WITHIN_REASON]},
                "then": {"$toDate": {"$toLong": {"$multiply": ["$created_at", 1000]}}},
            },
        ],
        "default": None,
    }
}
"""The start as a date, worked out from the index alone; null where `_READABLE` is not met."""
AT_ONCE = 500  # subscriptions whose accounts a list looks at together
LONGEST_SCAN = 120.0  # seconds; grouping a million subscriptions takes a tenth of it


def subscriptions() -> Collection[Document]:
    return collection(settings().subscriptions_collection)


@dataclass(frozen=True, kw_only=True)
class Agency:
    """An agency that is due for a review request; `account_id` is `None` when its oldest subscription names none."""

    account_id: Any
    parent_account: Any
    subscription_ids: list[Any]
    oldest_subscription: datetime


def eligible(
    product_types: Sequence[str], *, until: datetime, asked_since: datetime, accounts: Sequence[Any] | None = None
) -> Iterator[Agency]:
    """Yield the agencies whose oldest subscription began by `until` and that no pulse blocks: one aggregation.

    Args:
        product_types: what counts as managed.
        asked_since: a request created or completed after that still blocks, see `pulse.blocking`.
        accounts: only the agencies of these parent accounts; `None`: all.
    """
    stages = [
        {"$match": _managed(product_types) | ({} if accounts is None else {"account": {"$in": list(accounts)}})},
        {"$project": {"account": 1, "account_id": "$metadata.account_id", "started": _STARTED}},
        {"$match": {"started": {"$ne": None}}},
        {
            "$group": {
                "_id": "$account",
                "subscription_ids": {"$push": "$_id"},
                # The least of these is the oldest: documents compare field by field, in this order.
                "oldest": {"$min": {"started": "$started", "_id": "$_id", "account_id": "$account_id"}},
            }
        },
        {"$match": {"oldest.started": {"$lte": until}}},
        *_without_pulse("account_id", "$oldest.account_id", asked_since),
        *_without_pulse("metadata.parent_account", "$_id", asked_since),
    ]
    with pymongo.timeout(LONGEST_SCAN):  # all groups are made before the first one comes
        groups: Any = subscriptions().aggregate(stages, allowDiskUse=True, hint="managed_by_account")
    for group in groups:
        yield Agency(
            account_id=group["oldest"].get("account_id"),
            parent_account=group["_id"],
            subscription_ids=group["subscription_ids"],
            oldest_subscription=truncate(group["oldest"]["started"]),
        )


def accounts(product_types: Sequence[str], *, after: Any, is_descending: bool) -> Iterator[list[Any]]:
    """Yield the parent accounts with managed subscriptions, in their order beyond `after`, some at a time.

    Only those that are a text or an ObjectId: texts come first, or last when `is_descending`.

    Raises:
        NoPosition: `after` is neither.
    """
    direction, further = (DESCENDING, "$lt") if is_descending else (ASCENDING, "$gt")
    kinds = {str: "string", ObjectId: "objectId"}
    in_order = list(kinds)[::direction]
    if after is not None and type(after) not in kinds:
        raise NoPosition(f"{after!r:.100} is no account")
    for kind in in_order[in_order.index(type(after)) :] if after is not None else in_order:
        beyond = {further: after} if isinstance(after, kind) else {}
        while some := _some_accounts(product_types, {"$type": kinds[kind], **beyond}, direction):
            yield some
            beyond = {further: some[-1]}


def _some_accounts(product_types: Sequence[str], account: Document, direction: int) -> list[Any]:
    """Return the first accounts that meet a condition, in their order."""
    found = subscriptions().find(
        _managed(product_types) | {"account": account},
        {"account": 1, "_id": 0},
        hint="managed_by_account",
        sort=[("account", direction)],
        limit=AT_ONCE,
    )
    return list(dict.fromkeys(one["account"] for one in found))


def has_managed(product_types: Sequence[str], accounts: Sequence[Any]) -> bool:
    """Tell whether one of these parent accounts has a managed subscription."""
    where = _managed(product_types) | {"account": {"$in": list(accounts)}}
    return subscriptions().find_one(where, {"_id": 1}, hint="managed_by_account") is not None


def unreadable(product_types: Sequence[str], *, limit: int) -> tuple[int, list[Any]]:
    """Return how many managed subscriptions have a `created_at` that is none, and the first of their ids."""
    where = {**_managed(product_types), "$nor": [_READABLE]}
    found = subscriptions().find(where, {"_id": 1}, hint="managed_by_account", limit=limit)
    ids = [subscription["_id"] for subscription in found]
    return (subscriptions().count_documents(where, hint="managed_by_account") if ids else 0), ids


def indexes() -> list[IndexModel]:
    fields = ("status", "plan.metadata.product_type", "account", "created_at", "metadata.account_id", "_id")
    return [IndexModel([(field, ASCENDING) for field in fields], name="managed_by_account")]


def _managed(product_types: Sequence[str]) -> Document:
    return {"status": "active", "plan.metadata.product_type": {"$in": list(product_types)}}


def _without_pulse(field: str, account_of: str, asked_since: datetime) -> list[Document]:
    """Return the stages that drop an agency one of whose spellings of an account a pulse blocks."""
    look = {
        "from": settings().pulses_collection,
        "localField": "spellings",
        "foreignField": field,
        "pipeline": [{"$match": pulse.blocking(asked_since)}, {"$limit": 1}, {"$project": {"_id": 1}}],
        "as": "blocks",
    }
    return [
        {"$set": {"spellings": account.spellings_of(account_of)}},
        {"$lookup": look},
        {"$match": {"blocks": {"$size": 0}}},
    ]


def collections() -> dict[str, list[IndexModel]]:
    """Return what this module keeps, for `migrate`."""
    return {subscriptions().name: indexes()}
