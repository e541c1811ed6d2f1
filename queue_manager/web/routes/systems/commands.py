"""Trying items again by hand: each is taken as a scan takes it, and its ordinary task is sent.

Guarantee: 202 after the broker took the messages. What was taken is in progress, so that no scan sends it beside, and
of two who ask at once one is refused; what could not be sent is given back, and due at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from queue_manager.batching.publish import publish
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.items import Listed
from queue_manager.system import System
from queue_manager.web.http.errors import Refused
from queue_manager.web.http.openapi import TEXT, body, one_of, thing
from queue_manager.web.http.request_body import malformed, read
from queue_manager.web.publishing import broker
from queue_manager.web.routes.systems.listing import COUNTED, LONGEST_SEARCH, matches
from queue_manager.web.routes.systems.registry import WithItems
from queue_manager.web.server_calls import Unavailable, mongodb
from services.due_work import DueItem
from tasks import app
from tasks.base import ItemTask

MOST = 1_000
"""Items that one request sends."""
LARGEST_BODY = 4 * 1024
RETRIED = ("due", "stuck", "failed")

T = TypeVar("T", bound=BaseModel)

log = get_logger("QM/items")
router = APIRouter()


class Wanted(BaseModel):
    """Which items are meant."""

    model_config = ConfigDict(extra="forbid", strict=True)

    state: Literal["due", "stuck", "failed"]
    search: str | None = Field(default=None, max_length=LONGEST_SEARCH)


class Nothing(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


async def _body(request: Request) -> bytes:
    return await read(request, LARGEST_BODY, field="body")


Body = Annotated[bytes, Depends(_body)]


@router.post(
    "/systems/{name}/items/retry",
    status_code=HTTPStatus.ACCEPTED,
    openapi_extra=body(thing("state", state=one_of(*RETRIED), search=TEXT)),
)
def retry_all(found: WithItems, given: Body) -> JSONResponse:
    """Send the tasks of all items that match, at most 1,000: `sent` of `of`, which counts no further than 20,000."""
    system, open_list = found
    wanted = _wanted(Wanted, given)
    with mongodb():
        listed = open_list()
        looked_at = islice(listed.items(wanted.state), COUNTED)
        matching = list(dict.fromkeys(item.id for item in looked_at if matches(item, wanted.search)))
    sent, of, ids = 0, len(matching), matching[:MOST]
    for first in range(0, len(ids), settings().qm_claim_batch):
        sent += len(_retry(system, listed, ids[first : first + settings().qm_claim_batch]))
    log.info("Items are tried again by hand", system=system.name, state=wanted.state, sent=sent, of=of)
    return JSONResponse({"sent": sent, "of": of}, status_code=HTTPStatus.ACCEPTED)


@router.post(
    "/systems/{name}/items/{id:path}/retry",
    status_code=HTTPStatus.ACCEPTED,
    openapi_extra=body(thing(), is_needed=False),
)
def retry_one(found: WithItems, id: str, given: Body) -> JSONResponse:
    """Send the task of one item that is due, stuck or failed. 409: it is in progress, or not due."""
    system, open_list = found
    if given.strip():
        _wanted(Nothing, given)
    listed = open_list()
    taken = _retry(system, listed, [id])
    if not taken:
        raise _not_taken(listed, id)
    log.info("An item is tried again by hand", system=system.name, item=id, task_id=taken[0].token)
    return JSONResponse({"task_id": taken[0].token}, status_code=HTTPStatus.ACCEPTED)


def _not_taken(listed: Listed, id: str) -> Refused:
    with mongodb():
        exists = listed.has(id)
    if exists:
        said = f"The item {id!r:.100} is in progress, or has nothing to be done now"
        return Refused(HTTPStatus.CONFLICT, "wrong state", said)
    return Refused(HTTPStatus.NOT_FOUND, "not found", f"There is no item {id!r:.100}", field="id")


def _retry(system: System, listed: Listed, ids: Sequence[str]) -> list[DueItem]:
    """Take and send; what could not be sent is given back. Raises `Unavailable`."""
    with mongodb():
        taken = listed.take(ids)
    if taken:
        try:
            _send(system, taken)
        except Exception:
            _give_back(system, taken)
            raise
        _hold(system, taken)
    return taken


def _give_back(system: System, taken: Sequence[DueItem]) -> None:
    try:
        with mongodb():
            _task(system).work().release(taken)
    except Unavailable as error:
        log.warning("Items that were not sent come back when their leases end", items=len(taken), error=reason(error))


def _hold(system: System, taken: Sequence[DueItem]) -> None:
    try:
        _task(system).work().sent_by_hand(taken)
    except Unavailable as error:
        log.warning("Items that were sent are held for one lease only", items=len(taken), error=reason(error))


def _send(system: System, taken: Sequence[DueItem]) -> None:
    """Send the items' tasks. Raises `Unavailable`."""
    with broker() as connection, app.amqp.Producer(connection) as producer:
        publish(_task(system), taken, producer)


def _task(system: System) -> ItemTask:
    task: ItemTask = app.tasks[system.item_task]
    return task


def _wanted(kind: type[T], given: bytes) -> T:
    """Read a body. Raises `Refused`, which names the field."""
    try:
        return kind.model_validate_json(given)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid" or not first["loc"]:
            raise malformed(first["msg"]) from None
        name = str(first["loc"][0])[:64]
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", f"{name}: {first['msg']}", field=name) from None
