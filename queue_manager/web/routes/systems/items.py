"""The items of a system over HTTP: a page of those in one state, their number, and retries by an operator.

A retry is answered with 202 after the broker took the messages; see `tasks/retry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Literal

from bson import json_util
from fastapi import APIRouter, Depends, Path, Query, Response

from beat_schedule import systems
from models.database import server_now
from queue_manager.core.log import get_logger
from queue_manager.items import Item, Listed, State
from queue_manager.server_calls import mongodb
from queue_manager.system import System
from queue_manager.web.auth import CurrentActor
from queue_manager.web.http import cursors
from queue_manager.web.http.cursors import Cursor
from queue_manager.web.http.errors import ApiError, errors, invalid
from queue_manager.web.http.requests import JsonBody, NoMembers
from queue_manager.web.routes.systems.queries import DEFAULT_PAGE_SIZE, PageSize, find_system
from queue_manager.web.routes.systems.schemas import (
    MAX_ITEM_SEARCH_LENGTH,
    MAX_RETRIED,
    ItemCount,
    ItemDocument,
    Items,
    ListedItem,
    RetriedItems,
    Sent,
    SentTask,
)
from services.audit import recorded
from tasks.retry import retry, retry_many

MAX_SEARCHED = 5_000  # items that one page of a search reads; the next page starts after them
MAX_COUNTED = 20_000  # items
MAX_RETRY_BODY = 256 * 1024  # bytes
MAX_DOCUMENT_LENGTH = 1024 * 1024  # characters

Search = Annotated[
    str | None, Query(max_length=MAX_ITEM_SEARCH_LENGTH, description="A text in the id, the title or the reason.")
]

log = get_logger("QM/items")
router = APIRouter(responses=errors(404, 503))
retries = APIRouter()


def system_with_items(name: Annotated[str, Path()]) -> tuple[System, Callable[[], Listed]]:
    system = find_system(name, systems())
    if system.items is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not found", f"The system {name} lists no items", field="name")
    return system, system.items


WithItems = Annotated[tuple[System, Callable[[], Listed]], Depends(system_with_items)]
"""The system that a path names, and its list of items."""


@router.get("/systems/{name}/items")
def items(
    found: WithItems,
    state: State = "due",
    search: Search = None,
    cursor: Cursor = None,
    limit: PageSize = DEFAULT_PAGE_SIZE,
    order: Literal["newest", "oldest"] = "newest",
) -> Items:
    """List the items in a state, by the time that it depends on: when they were due, or when their lease ends.

    A search reads 5,000 items at a time: a page may be short or empty; its cursor continues.
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


@router.get("/systems/{name}/items/{id:path}", response_model=ItemDocument, responses=errors(404, 413, 503))
def item_document(found: WithItems, id: str) -> Response:
    """Return the document of an item as it is stored, in relaxed extended JSON."""
    with mongodb():
        document = found[1]().document(id)
    if document is None:
        raise _no_item(id)
    text = json_util.dumps({"document": document}, json_options=json_util.RELAXED_JSON_OPTIONS)
    if len(text) > MAX_DOCUMENT_LENGTH:
        message = f"The document has more than {MAX_DOCUMENT_LENGTH} characters as JSON"
        raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large", message)
    return Response(text, media_type="application/json")


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


@retries.post("/systems/{name}/items/retry", status_code=HTTPStatus.ACCEPTED, responses=errors(404, 503))
def retry_items(
    found: WithItems,
    body: Annotated[RetriedItems, Depends(JsonBody(RetriedItems, max_bytes=MAX_RETRY_BODY))],
    actor: CurrentActor,
) -> Sent:
    """Send the tasks of the items of `ids`, or of all that match, at most 1,000. `of` counts them, up to 20,000.

    Items that are in progress, not due or gone are left alone.
    """
    if (body.ids is None) == (body.state is None):
        raise invalid("state", "exactly one of state and ids is required")
    system, open_list = found
    listed = open_list()
    matching = _matching(listed, body.state, body.search) if body.state else list(dict.fromkeys(body.ids or []))
    ids, selected = matching[:MAX_RETRIED], {"state": body.state, "search": body.search} if body.state else None
    with recorded(actor, "retry", system=system.name, filter=selected, ids=ids, total=len(matching)) as action:
        action.count = sent = retry_many(system, listed, ids)
    log.info(
        "Items are retried by an operator", system=system.name, state=body.state or "any", sent=sent, of=len(matching)
    )
    return Sent(sent=sent, of=len(matching))


def _matching(listed: Listed, state: State, search: str | None) -> list[str]:
    with mongodb():
        read = islice(listed.items(state), MAX_COUNTED)
        return list(dict.fromkeys(item.id for item in read if matches(item, search)))


@retries.post("/systems/{name}/items/{id:path}/retry", status_code=HTTPStatus.ACCEPTED, responses=errors(404, 409, 503))
def retry_item(
    found: WithItems,
    id: str,
    _: Annotated[NoMembers, Depends(JsonBody(NoMembers, max_bytes=MAX_RETRY_BODY, is_required=False))],
    actor: CurrentActor,
) -> SentTask:
    """Send the task of one item that is due, stuck or failed. 409: it is in progress, or not due."""
    system, open_list = found
    listed = open_list()
    with recorded(actor, "retry", system=system.name, ids=[id]) as action:
        taken = retry(system, listed, [id])
        if not taken:
            raise _not_taken(listed, id)
        action.count = 1
    log.info("An item is retried by an operator", system=system.name, item=id, task_id=taken[0].token)
    return SentTask(task_id=taken[0].token)


def _not_taken(listed: Listed, id: str) -> ApiError:
    with mongodb():
        exists = listed.has(id)
    if exists:
        message = f"The item {id!r:.100} is in progress or not due"
        return ApiError(HTTPStatus.CONFLICT, "wrong state", message)
    return _no_item(id)


def _no_item(id: str) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, "not found", f"There is no item {id!r:.100}", field="id")
