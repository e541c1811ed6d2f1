"""Account ids: an ObjectId and a text of its 24 hexadecimal digits are the same account."""

from __future__ import annotations

from typing import Any

from bson import ObjectId


def stored(account: Any) -> Any:
    """Return the form in which an account is written: an ObjectId where it can be one."""
    return ObjectId(account) if isinstance(account, str) and ObjectId.is_valid(account) else account


def spellings(account: Any) -> list[Any]:
    """Return every form in which the account may stand in a document; none of no account."""
    if account is None:
        return []
    return list(dict.fromkeys((stored(account), str(account))))


def spellings_of(expression: Any) -> dict[str, Any]:
    """Return the aggregation expression of `spellings`; for no account a value that no account is.

    An empty list would not do: `$lookup` takes it for "null or missing".
    """
    as_object_id = {"$convert": {"input": expression, "to": "objectId", "onError": expression, "onNull": None}}
    as_text = {"$convert": {"input": expression, "to": "string", "onError": expression, "onNull": None}}
    return {"$cond": [{"$eq": [{"$ifNull": [expression, None]}, None]}, [False], [as_object_id, as_text]]}
