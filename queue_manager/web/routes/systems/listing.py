"""The items of a system: a page of those in one state, and how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from models.database import server_now
from queue_manager.items import Item, Listed, State
from queue_manager.web.http import cursors
from queue_manager.web.http.cursors import Cursor
from queue_manager.web.http.errors import errors
from queue_manager.web.http.responses import no_store
from queue_manager.web.routes.systems.registry import WithItems
from queue_manager.web.routes.systems.schemas import MAX_SEARCH_LENGTH, ItemCount, Items, ListedItem
from queue_manager.web.server_calls import mongodb

DEFAULT_LIMIT, MAX_LIMIT = 50, 200
MAX_SEARCHED = 5_000
"""Items that one page of a search reads: the next page goes on behind them."""
MAX_COUNTED = 20_000

Search = Annotated[
    str | None, Query(max_length=MAX_SEARCH_LENGTH, description="A text in the id, the title or the reason.")
]

router = APIRouter(dependencies=[no_store], responses=errors(404, 503))


@router.get("/systems/{name}/items")
def items(
    found: WithItems,
    state: State = "due",
    search: Search = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT,
    order: Literal["newest", "oldest"] = "newest",
) -> Items:
    """List the items in a state, by the time that it depends on: when they were due, or when their lease ends.

    A search reads 5,000 items at a time: a page may be short or empty, and its cursor goes on.
    """
    system, open_list = found
    of = f"{system.name} {state} {order}"
    after = cursors.decode(cursor, of=of)
    with mongodb(), cursors.checked():
        walk = open_list().items(state, after=after, newest_first=order == "newest")
        shown, last = _page(walk, search, limit)
        now = server_now()
    return Items(
        items=[ListedItem.model_validate(asdict(item)) for item in shown],
        cursor=None if last is None else cursors.encode(last.position, of=of),
        server_time=now,
    )


def _page(walk: Iterator[Item], search: str | None, limit: int) -> tuple[list[Item], Item | None]:
    """Return a page, and the item behind which the next one begins, `None` at the end."""
    shown: list[Item] = []
    last: Item | None = None
    for number, item in enumerate(walk):
        if len(shown) == limit or number == MAX_SEARCHED:
            return shown, last
        if matches(item, search):
            shown.append(item)
        last = item
    return shown, None


@router.get("/systems/{name}/items/count")
def count_items(found: WithItems, state: State = "due", search: Search = None) -> ItemCount:
    """Count the items in a state, up to 20,000."""
    with mongodb():
        matching, is_complete = counted(found[1](), state, search)
    return ItemCount(count=matching, is_complete=is_complete)


def counted(listed: Listed, state: State, search: str | None) -> tuple[int, bool]:
    """Return how many items match, and whether all were read."""
    read = matching = 0
    for item in islice(listed.items(state), MAX_COUNTED):
        read += 1
        matching += matches(item, search)
    return matching, read < MAX_COUNTED


def matches(item: Item, search: str | None) -> bool:
    """Return True if a text is in the id, the title or the reason, ignoring case."""
    if not search:
        return True
    wanted = search.lower()
    return any(wanted in text.lower() for text in (item.id, item.title, item.reason or ""))
