"""Lists in the order of an index, from any position on: a page costs what it shows, wherever it begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymongo import ASCENDING, DESCENDING
from pymongo.collection import Collection

from models.database import Document, projection, value_at
from queue_manager.core.errors import PermanentError
from queue_manager.items import Position as Position

Order = Sequence[str]
"""Fields by which an index sorts, after those that a condition fixes. The last one is `_id`, so that none are equal."""
BATCH = 250  # documents of one answer of the server: a page costs one, a search few


class NoPosition(PermanentError):
    """It names no place in the list that it is meant for."""


def walk(
    collection: Collection[Document],
    where: Document,
    *,
    index: str,
    order: Order,
    fields: Sequence[str] = (),
    after: Position | None = None,
    is_descending: bool = False,
    batch: int = BATCH,
) -> Iterator[Document]:
    """Yield the documents of `where` beyond the position `after`; all their fields unless some are named.

    Raises:
        NoPosition: `after` is none of this order.
    """
    if after is not None and len(after) != len(order):
        raise NoPosition(f"{after!r:.100} is no place in a list by {', '.join(order)}")
    sort = [(field, DESCENDING if is_descending else ASCENDING) for field in order]
    wanted = projection((*fields, *order))
    for beyond in _beyond(after, order, is_descending=is_descending) if after else [{}]:
        yield from collection.find(
            {"$and": [where, beyond]}, wanted if fields else None, hint=index, sort=sort
        ).batch_size(batch)


def position(document: Document, order: Order) -> Position:
    return tuple(value_at(document, field) for field in order)


def _beyond(after: Position, order: Order, *, is_descending: bool) -> Iterator[Document]:
    """Yield the conditions of what lies beyond a position, in order: each is one range of the index."""
    further = "$lt" if is_descending else "$gt"
    for same in reversed(range(len(order))):
        equal = {field: {"$eq": value} for field, value in zip(order[:same], after, strict=False)}
        field, value = order[same], after[same]
        # Outside an expression, values of the same type alone are compared, and ids may be of several.
        is_id = field == "_id"
        yield {
            **equal,
            **({"$expr": {further: [f"${field}", {"$literal": value}]}} if is_id else {field: {further: value}}),
        }
