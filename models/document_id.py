"""Ids of documents, of any BSON type: as text, for people and messages, and as keys of dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC
from itertools import chain
from math import nan
from typing import Any
from uuid import UUID

import bson
from bson import Binary, Code, Decimal128, ObjectId, Regex, json_util
from bson.binary import UUID_SUBTYPE
from bson.errors import InvalidId

from models.database import Document
from queue_manager.core.errors import PermanentError
from queue_manager.core.json_types import is_within_depth

OBJECT_ID_DIGITS = 24
UUID_BYTES = 16  # MongoDB also stores values of its subtype with other lengths
MAX_ID_DEPTH = 100  # levels of nesting; MongoDB refuses commands with about 200
_ID_JSON = json_util.JSONOptions(json_mode=json_util.JSONMode.CANONICAL, tz_aware=True, tzinfo=UTC)


class _DocumentKey(dict[str, Any]):
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(id_text(self))

    def __eq__(self, other: object) -> bool:  # in Python, documents with a NaN are never equal
        return isinstance(other, dict) and id_text(self) == id_text(other)


class _CodeKey(Code):
    def __hash__(self) -> int:
        return hash(id_text(self))


class _DecimalKey(Decimal128):
    def __hash__(self) -> int:  # type: ignore[override]
        return hash(id_text(self))


def id_key(id: Any) -> Any:
    """Return an id as a hashable key, which MongoDB accepts as the id itself."""
    if isinstance(id, ObjectId):
        return id
    if isinstance(id, dict):
        return _DocumentKey(id)
    if isinstance(id, Code):
        return _CodeKey(id)
    if id != id:
        return nan  # one object, so that a dictionary finds it although NaN != NaN
    return _DecimalKey.from_bid(id.bid) if isinstance(id, Decimal128) else id


def is_same_id(one: Any, other: Any) -> bool:
    """Return True if two ids are equal in MongoDB; in Python `True` and 1 are equal, too."""
    return one == other if isinstance(one, ObjectId) else id_text(one) == id_text(other)


def id_text(value: Any) -> str:
    """Return an id of any type as a text that `read_id` parses.

    An ObjectId is its 24 hexadecimal digits; other ids are canonical extended JSON, so a text is in quotation marks.
    """
    return str(value) if isinstance(value, ObjectId) else json_util.dumps(value, json_options=_ID_JSON)


def read_id(value: Any, *, field: str) -> Any:
    """Parse the text of an id. Raises PermanentError, which names `field` and the value."""
    try:
        if not isinstance(value, str):
            raise TypeError("not a string")
        if len(value) == OBJECT_ID_DIGITS:
            with suppress(InvalidId):
                return ObjectId(value)
        found = json_util.loads(value, json_options=_ID_JSON)
        if isinstance(found, list | Regex) or (isinstance(found, dict) and _is_condition(found)):
            raise TypeError("MongoDB has no such ids")
        if not is_within_depth(found, MAX_ID_DEPTH):
            raise ValueError("nested too deep")
        bson.encode({"_id": found})
    except Exception as error:  # bson raises many types of errors for malformed values
        raise PermanentError(
            f"{field}: {value!r:.100} is not an id: must be the 24 hexadecimal digits of an ObjectId, or extended "
            "JSON, in which a string stands in quotation marks"
        ) from error
    return id_key(found)


def id_candidates(text: str) -> list[Any]:
    """Return the ids that a text may represent: the one that `read_id` parses, a UUID, the text itself."""
    found: list[Any] = []
    with suppress(PermanentError):
        found.append(read_id(text, field="id"))
    with suppress(ValueError):
        found.append(Binary.from_uuid(UUID(text)))
    with suppress(UnicodeEncodeError):
        text.encode()  # fails for unpaired surrogates, which no id has
        found.append(text)
    return found


def existing_ids(texts: Sequence[str], find: Callable[[list[Any]], Iterable[Any]]) -> list[Any]:
    """Return the ids that texts name: of several readings of a text, the first of those that `find` returns."""
    readings = [[id_key(one) for one in id_candidates(text)] for text in texts]
    found = {id_key(one) for one in find([*chain(*readings)])}
    return [key for keys in readings for key in [one for one in keys if one in found][:1]]


def shown_id(id: Any) -> str:
    """Return an id for display: a string without quotation marks, a number as digits, a UUID with hyphens."""
    if isinstance(id, Binary) and id.subtype == UUID_SUBTYPE and len(id) == UUID_BYTES:
        return str(id.as_uuid())
    return str(id) if isinstance(id, (ObjectId, str, int, float, Decimal128)) else id_text(id)


def _is_condition(document: Document) -> bool:
    """Return True if a document is a condition in a query instead of a value."""
    return any(name.startswith("$") for name in document)
