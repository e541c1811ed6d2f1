"""Subscriptions, written by the product and only read here.

    {account, status, created_at, plan: {metadata: {product_type}}, metadata: {account_id}}

`account` is the parent, `metadata.account_id` the agency itself. `created_at` is Unix seconds or a date; a number
above 1e11 would be milliseconds; such subscriptions, and those without a start, are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

import pymongo
from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.collection import Collection

from models import account, pulse
from models.database import Document, collection
from models.due_documents import A_DATE
from models.listing import NoPosition, Sample, sample
from models.pulse import Agency
from queue_manager.core.clock import MIN_MILLISECONDS, truncate
from queue_manager.core.settings import settings

_IS_A_DATE: Document = {"$eq": [{"$type": "$created_at"}, "date"]}
_WITHIN_REASON: Document = {"$and": [{"$gte": ["$created_at", 0]}, {"$lte": ["$created_at", MIN_MILLISECONDS]}]}
_READABLE: Document = {
    "$or": [{"created_at": A_DATE}, {"created_at": {"$gte": 0, "$lte": MIN_MILLISECONDS}}],
    "created_at": {"$not": {"$type": "array"}},
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
"""The start as a date, computed from the index alone; null if `_READABLE` is not met."""
ACCOUNT_BATCH_SIZE = 500  # subscriptions per query of accounts
AGGREGATION_TIMEOUT = 120.0  # seconds; grouping a million subscriptions takes a tenth of this


def subscriptions() -> Collection[Document]:
    return collection(settings().subscriptions_collection)


def eligible(
    product_types: Sequence[str], *, until: datetime, asked_since: datetime, accounts: Sequence[Any] | None = None
) -> Iterator[Agency]:
    """Yield the agencies whose oldest subscription began by `until` and that no pulse blocks, in one aggregation.

    Args:
        product_types: types of managed subscriptions.
        asked_since: requests created or completed after this time block, see `pulse.blocking`.
        accounts: only the agencies of these parent accounts; `None`: all.
    """
    return _agencies(
        [
            *_grouped(product_types, accounts),
            {"$match": {"oldest.started": {"$lte": until}}},
            *_without_pulse("account_id", "$oldest.account_id", asked_since),
            *_without_pulse("metadata.parent_account", "$parent_account", asked_since),
        ]
    )


def agencies(product_types: Sequence[str], *, accounts: Sequence[Any]) -> Iterator[Agency]:
    """Yield the agencies of these parent accounts, whether or not they are due."""
    return _agencies(_grouped(product_types, accounts))


def _grouped(product_types: Sequence[str], accounts: Sequence[Any] | None) -> list[Document]:
    """Return the stages that make one document for each agency."""
    return [
        {"$match": _managed(product_types) | ({} if accounts is None else {"account": {"$in": list(accounts)}})},
        {"$project": {"account": 1, "account_id": "$metadata.account_id", "started": _STARTED}},
        {"$match": {"started": {"$ne": None}}},
        {
            "$group": {
                "_id": {"$ifNull": [account.usable_of("$account"), account.stored_of("$account_id")]},
                "parent_account": {"$max": account.usable_of("$account")},
                "subscription_ids": {"$push": "$_id"},
                # The least of these is the oldest: documents compare field by field, in this order.
                "oldest": {"$min": {"started": "$started", "_id": "$_id", "account_id": "$account_id"}},
            }
        },
    ]


def _agencies(stages: Sequence[Document]) -> Iterator[Agency]:
    # The first reply has no group, because the driver would repeat a refused command until the limit below is over.
    groups: Any = subscriptions().aggregate(stages, allowDiskUse=True, hint="managed_by_account", batchSize=0)
    with pymongo.timeout(AGGREGATION_TIMEOUT):  # all groups are computed before the first is returned
        first = next(groups, None)
    for group in chain([] if first is None else [first], groups):
        yield Agency(
            account_id=account.usable(group["oldest"].get("account_id")),
            parent_account=account.usable(group["parent_account"]),
            subscription_ids=group["subscription_ids"],
            oldest_subscription=truncate(group["oldest"]["started"]),
        )


def accounts(product_types: Sequence[str], *, after: Any, is_descending: bool) -> Iterator[list[Any]]:
    """Yield the parent accounts with managed subscriptions, in order after `after`, in batches.

    Only texts and ObjectIds: texts come first, or last if `is_descending`.

    Raises:
        NoPosition: `after` is neither of them.
    """
    direction, further = (DESCENDING, "$lt") if is_descending else (ASCENDING, "$gt")
    kinds = {str: "string", ObjectId: "objectId"}
    in_order = list(kinds)[::direction]
    if after is not None and type(after) not in kinds:
        raise NoPosition(f"{after!r:.100} is not an account")
    for kind in in_order[in_order.index(type(after)) :] if after is not None else in_order:
        beyond = {further: after} if isinstance(after, kind) else {}
        while some := _some_accounts(product_types, {"$type": kinds[kind], **beyond}, direction):
            yield some
            beyond = {further: some[-1]}


def _some_accounts(product_types: Sequence[str], account: Document, direction: int) -> list[Any]:
    """Return the first accounts that meet a condition, in order."""
    found = subscriptions().find(
        _managed(product_types) | {"account": {**account, "$not": {"$type": "array"}}},
        {"account": 1, "_id": 0},
        hint="managed_by_account",
        sort=[("account", direction)],
        limit=ACCOUNT_BATCH_SIZE,
    )
    return list(dict.fromkeys(one["account"] for one in found))


def stored_as_id_too(product_types: Sequence[str], accounts: Sequence[Any]) -> set[Any]:
    """Return those of these texts that other managed subscriptions contain as an ObjectId."""
    texts = {account.stored(one): one for one in accounts if isinstance(one, str)}
    ids = [one for one in texts if isinstance(one, ObjectId)]
    where = _managed(product_types) | {"account": {"$in": ids}}
    found = subscriptions().find(where, {"account": 1, "_id": 0}, hint="managed_by_account") if ids else ()
    return {texts[one["account"]] for one in found}


def has_managed(product_types: Sequence[str], accounts: Sequence[Any]) -> bool:
    """Return True if one of these parent accounts has a managed subscription."""
    where = _managed(product_types) | {"account": {"$in": list(accounts)}}
    return subscriptions().find_one(where, {"_id": 1}, hint="managed_by_account") is not None


def of_account(accounts: Sequence[Any], *, limit: int) -> list[Document]:
    """Return the active subscriptions of these parent accounts."""
    return list(subscriptions().find({"status": "active", "account": {"$in": list(accounts)}}, limit=limit))


def unreadable(product_types: Sequence[str]) -> Sample:
    """Return the number of managed subscriptions with an invalid `created_at`, and the first of their ids."""
    return sample(subscriptions(), {**_managed(product_types), "$nor": [_READABLE]}, index="managed_by_account")


def _managed(product_types: Sequence[str]) -> Document:
    return {"status": "active", "plan.metadata.product_type": {"$in": list(product_types)}}


def _without_pulse(field: str, account_of: str, asked_since: datetime) -> list[Document]:
    """Return the stages that drop agencies for which a pulse blocks a form of the account id."""
    lookup = {
        "from": settings().pulses_collection,
        "localField": "spellings",
        "foreignField": field,
        "pipeline": [{"$match": pulse.blocking(asked_since)}, {"$limit": 1}, {"$project": {"_id": 1}}],
        "as": "blocks",
    }
    return [
        {"$set": {"spellings": account.spellings_of(account_of)}},
        {"$lookup": lookup},
        {"$match": {"blocks": {"$size": 0}}},
    ]


def collections() -> dict[str, list[IndexModel]]:
    fields = ("status", "plan.metadata.product_type", "account", "created_at", "metadata.account_id", "_id")
    return {subscriptions().name: [IndexModel(fields, name="managed_by_account")]}
