"""Receiving messages, and ack, nack and touch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from queue_manager.core.settings import settings
from queue_manager.web.http.errors import Refused, errors, invalid
from queue_manager.web.http.query_parameters import EmptyIsNone
from queue_manager.web.http.responses import NO_STORE
from queue_manager.web.routes.messages import long_poll, request_body
from queue_manager.web.routes.messages.query_parameters import FilterType, whole
from queue_manager.web.routes.messages.request_body import MessageBody
from queue_manager.web.routes.messages.schemas import (
    MIN_TIMEOUT,
    AckBody,
    ChangedMessage,
    DeliveredMessage,
    NackBody,
    Nacked,
    TouchBody,
    Touched,
)
from services.message_queue import Json, message_queue
from services.message_queue.messages import MAX_ACK_TIMEOUT
from services.message_queue.queue import MAX_POLL_TIMEOUT

MAX_WAIT = 55.0
"""Seconds after which a poll is answered, even if its `timeout` is longer."""

WaitSeconds = Annotated[float, Field(ge=0, le=MAX_POLL_TIMEOUT, description="Seconds to wait for a message.")]
AckSeconds = Annotated[float, Field(ge=MIN_TIMEOUT, le=MAX_ACK_TIMEOUT, description="Seconds to the deadline.")]

router = APIRouter(responses=errors(503))


@router.get("/queue/message", response_model=DeliveredMessage, responses=errors(404))
async def receive(
    request: Request,
    timeout: Annotated[WaitSeconds | None, EmptyIsNone] = None,
    ack_timeout: Annotated[AckSeconds | None, EmptyIsNone, Query(alias="ackTimeout")] = None,
    type: Annotated[FilterType | None, EmptyIsNone, Query(description="Only messages of this type.")] = None,
    consumer_id: Annotated[
        FilterType | None, EmptyIsNone, Query(alias="consumerId", description="Shown while the message is held.")
    ] = None,
) -> Response:
    """Deliver the next message, or wait for one for `timeout` seconds. 404: there is none.

    It answers after 55 s at the latest: proxies give up after 60 s, and a message that comes then would be lost to its
    consumer until its deadline.
    """
    options = long_poll.ReceiveOptions(ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
    message = await run_in_threadpool(partial(options.take, message_queue()))
    if message is None and timeout:
        message = await long_poll.wait_for(options, min(timeout, MAX_WAIT), request=request)
    if message is None:
        raise Refused(HTTPStatus.NOT_FOUND, "not found", "Message not found")
    return Response(message.to_json(), media_type="application/json", headers=NO_STORE)


@router.post("/queue/ack", responses=errors(404, 409))
def ack(body: Annotated[bytes, Depends(MessageBody(AckBody))]) -> ChangedMessage:
    """Acknowledge a message: it is done. 409: its deadline has passed, or somebody else holds it."""
    given = request_body.object_of(body)
    id = request_body.values_of(given, "id")["id"]
    if id in (None, ""):
        raise _missing("id")
    message_queue().ack(id, _token(given))
    return ChangedMessage(message="Message acknowledged", id=id)


@router.post("/queue/message/{id:path}/nack", responses=errors(404, 409))
def nack(id: str, body: Annotated[bytes, Depends(MessageBody(NackBody, is_required=False))]) -> Nacked:
    """Report that a delivery failed. The message is delivered again, or dead-lettered after its last attempt."""
    given = _optional(body)
    reason = request_body.values_of(given, "errorReason")["errorReason"]
    if reason is not None and not isinstance(reason, str):
        raise invalid("errorReason", "must be a string")
    is_requeued = message_queue().nack(id, _token(given), reason)
    return Nacked(message="Message requeued" if is_requeued else "Message dead-lettered", id=id, requeued=is_requeued)


@router.put("/queue/message/{id:path}/touch", responses=errors(404, 409))
def touch(id: str, body: Annotated[bytes, Depends(MessageBody(TouchBody, is_required=False))]) -> Touched:
    """Extend the deadline of a message."""
    given = _optional(body)
    token = _token(given)
    touched = message_queue().touch(id, token, **request_body.values_of(given, "extend_seconds"))
    return Touched(
        new_timeout_at=touched.deadline_at,
        extended_by=whole(touched.extended_by.total_seconds()),
        lock_token=token,
    )


def _optional(body: bytes) -> dict[str, Json]:
    return request_body.object_of(body) if body.strip() else {}


def _token(given: Mapping[str, Json]) -> str | None:
    token = request_body.values_of(given, "lock_token")["lock_token"]
    if token not in (None, ""):
        return token  # type: ignore[no-any-return]  # the queue checks it
    if settings().queue_require_lock_token:
        raise _missing("lock_token")
    return None


def _missing(field: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, "bad request", f"{field}: is missing", field=field)
