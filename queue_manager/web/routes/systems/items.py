"""The items of a system over HTTP: a page of those in one state, their number, and retries by an operator.

A retry is answered with 202 after the broker took the messages; see `tasks/retry.py`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response

from queue_manager.core.log import get_logger
from queue_manager.items import State
from queue_manager.operations import items as operations
from queue_manager.operations.system_schemas import (
    MAX_ITEM_SEARCH_LENGTH,
    ItemCount,
    ItemDocument,
    Items,
    RetriedItems,
    Sent,
    SentTask,
)
from queue_manager.server_calls import mongodb
from queue_manager.web.auth import CurrentActor
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.http.requests import Cursor, JsonBody, NoBody
from queue_manager.web.routes.systems.queries import DEFAULT_PAGE_SIZE, Named, PageSize
from services.audit import recorded
from tasks.retry import retry

MAX_RETRY_BODY = 256 * 1024  # bytes

Search = Annotated[
    str | None, Query(max_length=MAX_ITEM_SEARCH_LENGTH, description="A text in the id, the title or the reason.")
]

log = get_logger("QM/items")
router = APIRouter(responses=errors(404, 503))
retries = APIRouter()


@router.get("/systems/{name}/items")
def items(
    system: Named,
    state: State = "due",
    search: Search = None,
    cursor: Cursor = None,
    limit: PageSize = DEFAULT_PAGE_SIZE,
    order: Literal["newest", "oldest"] = "newest",
) -> Items:
    """List the items in a state, by the time that it depends on: when they were due, or when their lease ends.

    A search reads 5,000 items at a time: a page may be short or empty; its cursor continues.
    """
    return operations.item_page(system, state, search=search, cursor=cursor, limit=limit, order=order)


@router.get("/systems/{name}/items/count")
def count_items(system: Named, state: State = "due", search: Search = None) -> ItemCount:
    """Count the items in a state, up to 20,000."""
    return operations.count_items(system, state, search)


@router.get("/systems/{name}/items/{id:path}", response_model=ItemDocument, responses=errors(404, 413, 503))
def item_document(system: Named, id: str) -> Response:
    """Return the document of an item as it is stored, in relaxed extended JSON."""
    return Response(operations.item_document(system, id), media_type="application/json")


@retries.post("/systems/{name}/items/retry", status_code=HTTPStatus.ACCEPTED, responses=errors(404, 503))
def retry_items(
    system: Named,
    body: Annotated[RetriedItems, Depends(JsonBody(RetriedItems, max_bytes=MAX_RETRY_BODY))],
    actor: CurrentActor,
) -> Sent:
    """Send the tasks of the items of `ids`, or of all that match, at most 1,000. `of` counts them, up to 20,000.

    Items that are in progress, not due or gone are left alone.
    """
    return operations.retry_items(system, body, actor)


@retries.post("/systems/{name}/items/{id:path}/retry", status_code=HTTPStatus.ACCEPTED, responses=errors(404, 409, 503))
def retry_item(
    system: Named,
    id: str,
    _: NoBody,
    actor: CurrentActor,
) -> SentTask:
    """Send the task of one item that is due, stuck or failed. 409: it is in progress, or not due."""
    listed = system.open_items()
    with recorded(actor, "retry", system=system.name, ids=[id]) as action:
        taken = retry(system, listed, [id])
        if not taken:
            with mongodb():
                if not listed.has(id):
                    raise operations.no_item(id)
            message = f"The item {id!r:.100} is in progress or not due"
            raise ApiError(HTTPStatus.CONFLICT, "wrong state", message)
        action.count = 1
    log.info("An item is retried by an operator", system=system.name, item=id, task_id=taken[0].token)
    return SentTask(task_id=taken[0].token)
