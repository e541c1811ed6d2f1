"""Keyset pagination in the order of an index: the cost of a page does not depend on its position; samples; counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bson import MaxKey, MinKey
from pymongo import ASCENDING, DESCENDING
from pymongo.collection import Collection

from models.database import Document, projection, value_at
from queue_manager.core.errors import PermanentError
from queue_manager.items import Position as Position

Order = Sequence[str]
"""Sort fields of an index, after the fields with a fixed value. The last is `_id`, which makes the order total."""
READ_BATCH_SIZE = 250  # documents per reply of the server
MAX_SAMPLE_IDS = 20


class NoPosition(PermanentError):
    """Invalid cursor."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The number of documents that meet a condition, and some of their ids."""

    count: int
    ids: list[Any]


def sample(collection: Collection[Document], where: Document, *, index: str, max_count: int | None = None) -> Sample:
    """Count documents, up to `max_count`, and read the first `MAX_SAMPLE_IDS` of their ids."""
    found = collection.find(where, {"_id": 1}, hint=index, limit=MAX_SAMPLE_IDS)
    ids = [one["_id"] for one in found]
    limit: Document = {} if max_count is None else {"limit": max_count}
    return Sample(count=collection.count_documents(where, hint=index, **limit) if ids else 0, ids=ids)


def count_by(
    of: Collection[Document], where: Document, fields: Sequence[str], **options: Any
) -> Counter[tuple[str, ...]]:
    """Count documents by the values of these fields, without those in which one is not a text."""
    each = {"$group": {"_id": {field: f"${field}" for field in fields}, "count": {"$sum": 1}}}
    groups = of.aggregate([{"$match": where}, each], **options)
    counts = ((tuple(group["_id"].get(field) for field in fields), group["count"]) for group in groups)
    return Counter({values: count for values, count in counts if all(isinstance(one, str) for one in values)})


def walk(
    collection: Collection[Document],
    where: Document,
    *,
    index: str | None,
    order: Order,
    fields: Sequence[str] = (),
    after: Position | None = None,
    is_descending: bool = False,
    batch: int = READ_BATCH_SIZE,
) -> Iterator[Document]:
    """Yield the documents that match `where` after the position `after`; all fields unless `fields` is given.

    Args:
        index: the name of the index to use; `None` lets the server choose, also while there is none.

    Raises:
        NoPosition: `after` does not fit the sort order.
    """
    wanted = projection((*fields, *order)) if fields else None
    for beyond, sort in ranges(order, after, is_descending=is_descending):
        yield from collection.find({"$and": [where, beyond]}, wanted, hint=index, sort=sort).batch_size(batch)


def ranges(
    order: Order, after: Position | None, *, is_descending: bool
) -> Iterator[tuple[Document, list[tuple[str, int]]]]:
    """Yield conditions and their sort orders, whose concatenated results are the documents after a position.

    Each is one range of an index. It is not sorted by the fields that are constant in it: the server would then sort
    jobs of several states in memory instead of merging them.

    Raises:
        NoPosition: `after` does not fit the sort order.
    """
    direction, further = (DESCENDING, "$lt") if is_descending else (ASCENDING, "$gt")
    sort = [(field, direction) for field in order]
    if after is None:
        yield {}, sort
        return
    if len(after) != len(order):
        raise NoPosition(f"{after!r:.100} is not a position in a list by {', '.join(order)}")
    for same in reversed(range(len(order))):
        equal = {field: {"$eq": value} for field, value in zip(order[:same], after, strict=False)}
        field, value = order[same], after[same]
        # Outside an expression, only values of the same type are compared, but ids may have several types.
        beyond = (
            {"$expr": {further: [f"${field}", {"$literal": value}]}} if field == "_id" else {field: {further: value}}
        )
        yield {**equal, **beyond}, sort[same:]


def newest(
    of: Collection[Document], where: Document, *, index: str | None, order: Order, after: Position | None, limit: int
) -> tuple[list[Document], Position | None]:
    """Return a page of what `walk` yields, descending, and the position of the next page; `None` at the end."""
    walked = walk(of, where, index=index, order=order, after=after, is_descending=True, batch=limit + 1)
    found = list(islice(walked, limit + 1))
    return found[:limit], position(found[limit - 1], order) if len(found) > limit else None


def position(document: Document, order: Order) -> Position:
    return tuple(value_at(document, field) for field in order)


def within_part(part: str, after: Position | None) -> Position | None:
    """Return the position in one collection after which a list of several collections continues.

    The positions of such a list are (…, collection, id), because the ids of one collection may have other types than
    those of another, which only the server can sort. The collections are read separately, by the values before.

    Raises:
        NoPosition: `after` is no position in such a list.
    """
    if after is None:
        return None
    try:
        *values, of, id = after
        is_later = part > of
    except (TypeError, ValueError):
        raise NoPosition(f"{after!r:.100} is not a position in a list of several collections") from None
    return (*values, id if part == of else MinKey() if is_later else MaxKey())
