"""Taking messages and saying what became of them: ack, nack, touch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from queue_manager.core.settings import settings
from queue_manager.web.http.errors import Refused
from queue_manager.web.http.openapi import NUMBER, TEXT, body, thing
from queue_manager.web.routes.messages import long_poll, request_body
from queue_manager.web.routes.messages.query_parameters import Number, Text, whole
from services.message_queue import Json, message_queue
from services.message_queue.messages import checked_number
from services.message_queue.queue import MAX_POLL_TIMEOUT

ACK = thing("id", id=TEXT, lock_token=TEXT)
NACK = thing(lock_token=TEXT, errorReason=TEXT)
TOUCH = thing(lock_token=TEXT, extend_seconds=NUMBER)

LONGEST_WAIT = 55.0
"""Seconds after which a poll is answered, however long it was to wait."""

router = APIRouter()


@router.get("/queue/message")
async def take(
    request: Request,
    timeout: Annotated[Number, Query()] = None,
    ack_timeout: Annotated[Number, Query(alias="ackTimeout")] = None,
    type: Annotated[Text, Query()] = None,
    consumer_id: Annotated[Text, Query(alias="consumerId")] = None,
) -> Response:
    """Give the next message, or wait for one for `timeout` seconds, up to 60.

    It answers after 55 s at the latest: proxies give up after 60, and a message that comes then would be lost to its
    consumer until its deadline.
    """
    patience = checked_number(timeout or 0, "timeout", minimum=0, maximum=MAX_POLL_TIMEOUT)
    wanted = long_poll.Wanted(ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
    message = await run_in_threadpool(partial(wanted.take, message_queue()))
    if message is None and patience:
        message = await long_poll.wait_for(wanted, min(patience, LONGEST_WAIT), request=request)
    if message is None:
        raise Refused(HTTPStatus.NOT_FOUND, "not found", "Message not found")
    return Response(message.to_json(), media_type="application/json", headers={"cache-control": "no-store"})


@router.post("/queue/ack", openapi_extra=body(ACK))
def ack(body: request_body.OfOne) -> dict[str, str]:
    """Consumers send the whole message, of which the id and the token count."""
    given = request_body.object_of(body)
    id = request_body.values_of(given, "id")["id"]
    if id in (None, ""):
        raise _missing("id")
    message_queue().ack(id, _token(given))
    return {"message": "Message acknowledged", "id": id}


@router.post("/queue/message/{id:path}/nack", openapi_extra=body(NACK))
def nack(id: str, body: request_body.OfOne) -> dict[str, Any]:
    given = _optional(body)
    why = request_body.reason_of(request_body.values_of(given, "errorReason")["errorReason"], "errorReason")
    is_requeued = message_queue().nack(id, _token(given), why)
    return {
        "message": "Message requeued" if is_requeued else "Message dead-lettered",
        "id": id,
        "requeued": is_requeued,
    }


@router.put("/queue/message/{id:path}/touch", openapi_extra=body(TOUCH))
def touch(id: str, body: request_body.OfOne) -> dict[str, Any]:
    given = _optional(body)
    token = _token(given)
    touched = message_queue().touch(id, token, **request_body.values_of(given, "extend_seconds"))
    return {
        "new_timeout_at": touched.deadline_at,
        "extended_by": whole(touched.extended_by.total_seconds()),
        "lock_token": token,
    }


def _optional(body: bytes) -> dict[str, Json]:
    return request_body.object_of(body) if body.strip() else {}


def _token(given: Mapping[str, Json]) -> str | None:
    token = request_body.values_of(given, "lock_token")["lock_token"]
    if token not in (None, ""):
        return token  # type: ignore[no-any-return]  # the queue looks at what it is
    if settings().queue_require_lock_token:
        raise _missing("lock_token")
    return None


def _missing(field: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, "bad request", f"{field}: it is missing", field=field)
