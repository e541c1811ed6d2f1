"""Account ids, stored as an ObjectId or as a text of its 24 hexadecimal digits."""

from __future__ import annotations

from typing import Any

from bson import ObjectId


def stored(account: Any) -> Any:
    """Return the form in which an account id is stored: an ObjectId if possible."""
    return ObjectId(account) if isinstance(account, str) and ObjectId.is_valid(account) else account


def spellings(account: Any) -> list[Any]:
    """Return all stored forms of an account id; empty for `None`."""
    if account is None:
        return []
    return list(dict.fromkeys((stored(account), str(account))))


def usable(account: Any) -> ObjectId | str | None:
    """Return an account id as it is, and `None` for a value that cannot be one."""
    return account if isinstance(account, ObjectId | str) and account != "" else None


def stored_of(expression: Any) -> dict[str, Any]:
    """Return the aggregation expression of `stored`."""
    return {"$convert": {"input": expression, "to": "objectId", "onError": expression, "onNull": None}}


def usable_of(expression: Any) -> dict[str, Any]:
    """Return the aggregation expression of `stored` for a value that `usable` accepts, and null for any other."""
    is_usable = [{"$in": [{"$type": expression}, ["objectId", "string"]]}, {"$ne": [expression, ""]}]
    return {"$cond": [{"$and": is_usable}, stored_of(expression), None]}


def spellings_of(expression: Any) -> dict[str, Any]:
    """Return the aggregation expression of `spellings`; for a missing account, a value that matches no account.

    An empty list cannot be used, because `$lookup` treats it as null or missing.
    """
    as_text = {"$convert": {"input": expression, "to": "string", "onError": expression, "onNull": None}}
    return {"$cond": [{"$eq": [{"$ifNull": [expression, None]}, None]}, [False], [stored_of(expression), as_text]]}
