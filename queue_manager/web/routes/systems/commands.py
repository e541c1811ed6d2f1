"""Retries by people: items are taken as a scan takes them, and their ordinary tasks are sent.

Guarantee: 202 after the broker took the messages. The items are in flight then, so that no scan sends them too, and of
two requests at the same time one is refused. Items that could not be sent are released and due at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Depends

from queue_manager.batching.publish import publish
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.items import Listed
from queue_manager.system import System
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.http.requests import JsonBody, NoMembers
from queue_manager.web.routes.systems.listing import MAX_COUNTED, matches
from queue_manager.web.routes.systems.registry import WithItems
from queue_manager.web.routes.systems.schemas import RetriedItems, Sent, SentTask
from queue_manager.web.server_calls import Unavailable, broker, mongodb
from services.due_work import DueItem
from tasks import app
from tasks.item import ItemTask

MAX_RETRIED = 1_000
"""Items that one request sends."""
MAX_BODY = 4 * 1024

log = get_logger("QM/items")
router = APIRouter()


@router.post("/systems/{name}/items/retry", status_code=HTTPStatus.ACCEPTED, responses=errors(404, 503))
def retry_items(
    found: WithItems, body: Annotated[RetriedItems, Depends(JsonBody(RetriedItems, max_bytes=MAX_BODY))]
) -> Sent:
    """Send the tasks of all items that match, at most 1,000. `of` counts them, up to 20,000."""
    system, open_list = found
    with mongodb():
        listed = open_list()
        read = islice(listed.items(body.state), MAX_COUNTED)
        matching = list(dict.fromkeys(item.id for item in read if matches(item, body.search)))
    sent, ids = 0, matching[:MAX_RETRIED]
    for first in range(0, len(ids), settings().qm_claim_batch):
        sent += len(_retry(system, listed, ids[first : first + settings().qm_claim_batch]))
    log.info("Items are retried by hand", system=system.name, state=body.state, sent=sent, of=len(matching))
    return Sent(sent=sent, of=len(matching))


@router.post("/systems/{name}/items/{id:path}/retry", status_code=HTTPStatus.ACCEPTED, responses=errors(404, 409, 503))
def retry_item(
    found: WithItems,
    id: str,
    _: Annotated[NoMembers, Depends(JsonBody(NoMembers, max_bytes=MAX_BODY, is_required=False))],
) -> SentTask:
    """Send the task of one item that is due, stuck or failed. 409: it is in progress, or not due."""
    system, open_list = found
    listed = open_list()
    taken = _retry(system, listed, [id])
    if not taken:
        raise _not_taken(listed, id)
    log.info("An item is retried by hand", system=system.name, item=id, task_id=taken[0].token)
    return SentTask(task_id=taken[0].token)


def _not_taken(listed: Listed, id: str) -> ApiError:
    with mongodb():
        exists = listed.has(id)
    if exists:
        message = f"The item {id!r:.100} is in progress or not due"
        return ApiError(HTTPStatus.CONFLICT, "wrong state", message)
    return ApiError(HTTPStatus.NOT_FOUND, "not found", f"There is no item {id!r:.100}", field="id")


def _retry(system: System, listed: Listed, ids: Sequence[str]) -> list[DueItem]:
    """Take and send items; release those that could not be sent. Raises `Unavailable`."""
    with mongodb():
        taken = listed.take(ids)
    if taken:
        try:
            _send(system, taken)
        except Exception:
            _release(system, taken)
            raise
        _hold(system, taken)
    return taken


def _release(system: System, taken: Sequence[DueItem]) -> None:
    try:
        with mongodb():
            _task(system).work().release(taken)
    except Unavailable as error:
        log.warning("Items that were not sent come back when their leases end", items=len(taken), error=reason(error))


def _hold(system: System, taken: Sequence[DueItem]) -> None:
    try:
        _task(system).work().sent_manually(taken)
    except Unavailable as error:
        log.warning("Items that were sent are held for one lease only", items=len(taken), error=reason(error))


def _send(system: System, taken: Sequence[DueItem]) -> None:
    """Send the items' tasks. Raises `Unavailable`."""
    with broker() as connection, app.amqp.Producer(connection) as producer:
        publish(_task(system), taken, producer)


def _task(system: System) -> ItemTask:
    task: ItemTask = app.tasks[system.item_task]
    return task
