"""The items of a system: a page of those in one state, and how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from models.database import server_now
from queue_manager.core.clock import to_iso
from queue_manager.items import Item, Listed, State
from queue_manager.web.http.responses import fresh
from queue_manager.web.routes.systems import cursors
from queue_manager.web.routes.systems.registry import WithItems
from queue_manager.web.server_calls import mongodb

USUAL_PAGE, LARGEST_PAGE = 50, 200
LONGEST_SEARCH = 256
LOOKED_AT = 5_000
"""Items that one page of a search looks at: the next one goes on behind them."""
COUNTED = 20_000
"""Items that are counted."""

Search = Annotated[str | None, Query(max_length=LONGEST_SEARCH)]
InState = Annotated[State, Query()]

router = APIRouter()


@router.get("/systems/{name}/items")
def page(
    found: WithItems,
    state: InState = "due",
    search: Search = None,
    before: Annotated[str | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE)] = USUAL_PAGE,
    order: Literal["newest", "oldest"] = "newest",
) -> JSONResponse:
    """List the items in a state, by the moment that it turns on: their due time, or the end of their claim.

    `search` looks in their ids, titles and reasons, 5,000 items at a time: a page may be short, and its cursor goes on.
    """
    system, open_list = found
    of = f"{system.name} {state} {order}"
    after = cursors.position(before, of=of)
    with mongodb(), cursors.checked():
        walk = open_list().items(state, after=after, newest_first=order == "newest")
        shown, last = _page(walk, search, limit)
        now = server_now()
    cursor = None if last is None else cursors.written(last.position, of=of)
    return fresh({"items": [_shown(item) for item in shown], "cursor": cursor, "server_time": to_iso(now)})


def _page(walk: Iterator[Item], search: str | None, limit: int) -> tuple[list[Item], Item | None]:
    """Return a page, and the item behind which the next one begins, `None` at the end."""
    shown: list[Item] = []
    last: Item | None = None
    for number, item in enumerate(walk):
        if len(shown) == limit or number == LOOKED_AT:
            return shown, last
        if matches(item, search):
            shown.append(item)
        last = item
    return shown, None


@router.get("/systems/{name}/items/count")
def count(found: WithItems, state: InState = "due", search: Search = None) -> JSONResponse:
    """Count the items in a state. `is_complete` says that all of them were looked at: there may be more than 20,000."""
    with mongodb():
        matching, is_complete = counted(found[1](), state, search)
    return fresh({"count": matching, "is_complete": is_complete})


def counted(listed: Listed, state: State, search: str | None) -> tuple[int, bool]:
    """Return how many items match, and whether all were looked at."""
    looked_at = matching = 0
    for item in islice(listed.items(state), COUNTED):
        looked_at += 1
        matching += matches(item, search)
    return matching, looked_at < COUNTED


def matches(item: Item, search: str | None) -> bool:
    """Tell whether a text is in the id, the title or the reason, whatever the case of its letters."""
    if not search:
        return True
    wanted = search.lower()
    return any(wanted in text.lower() for text in (item.id, item.title, item.reason or ""))


def _shown(item: Item) -> dict[str, Any]:
    moments = {"due_at": item.due_at, "since": item.since, "next_at": item.next_at}
    fields = asdict(item)
    del fields["position"]
    return {**fields, **{name: None if at is None else to_iso(at) for name, at in moments.items()}}
