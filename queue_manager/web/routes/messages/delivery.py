"""The message queue's API for producers and consumers: enqueue, receive, ack, nack and touch.

Guarantee: a poll that waits for a message holds no thread. A client that has disconnected receives no message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field
from starlette.requests import ClientDisconnect

from queue_manager.core.errors import prefix_fields
from queue_manager.core.settings import settings
from queue_manager.operations.message_fields import FilterType, whole
from queue_manager.operations.message_schemas import (
    AddedBatch,
    ChangedMessage,
    DeliveredMessage,
    Nacked,
    Touched,
)
from queue_manager.operations.schemas import EmptyIsNone
from queue_manager.web.auth.authentication import access_check, until_lost
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.http.middleware import DirectRoute
from queue_manager.web.routes.messages.requests import (
    MIN_TIMEOUT,
    AckBody,
    BatchBody,
    MessageBody,
    NackBody,
    NewMessageBody,
    TouchBody,
    checked_reason,
    missing,
)
from services.message_queue import InvalidMessage, Json, Message, NewMessage, async_message_queue, message_queue
from services.message_queue.fields import (
    MAX_ACK_TIMEOUT,
    MAX_ENQUEUED_MESSAGES,
    decode_member,
    decode_message,
    members,
    parse_list,
    parse_object,
)
from services.message_queue.operations import EnqueueResult, ReceiveOptions
from services.message_queue.queue import MAX_POLL_TIMEOUT

T = TypeVar("T")

READER_THREADS = CapacityLimiter(8)  # apart from those of other requests
CONNECTION_CHECK_DELAY = 0.05  # seconds that a dequeue takes before its connection is watched
MAX_POLL_DURATION = 55.0
"""Seconds after which a poll is answered, even if its `timeout` is longer."""

NewMessageBatch = Annotated[list[NewMessageBody], Field(max_length=MAX_ENQUEUED_MESSAGES)]
WaitSeconds = Annotated[float, Field(ge=0, le=MAX_POLL_TIMEOUT, description="Seconds to wait for a message.")]
AckSeconds = Annotated[float, Field(ge=MIN_TIMEOUT, le=MAX_ACK_TIMEOUT, description="Seconds to the deadline.")]


router = APIRouter(route_class=DirectRoute, responses=errors(503))

# Producers


@router.post("/queue/message", status_code=HTTPStatus.CREATED)
async def add(body: Annotated[bytes, Depends(MessageBody(NewMessageBody))]) -> ChangedMessage:
    """Add a message. 503 with `Retry-After`: the queue's server is full."""
    message = NewMessage.from_members(decode_message(parse_object(body)))
    (added,) = await async_message_queue().enqueue([message])
    return ChangedMessage(message="Message added successfully", id=added.id)


@router.post("/queue/batch", status_code=HTTPStatus.CREATED)
async def add_batch(body: Annotated[bytes, Depends(BatchBody(NewMessageBatch))]) -> AddedBatch:
    """Add up to 500 messages with up to 512 KiB of payloads, all or none."""
    messages = [_new_message(index, text) for index, text in enumerate(parse_list(body))]
    ids = [added.id for added in await _enqueue(messages)]
    return AddedBatch(message=f"Batch processed: {len(ids)}/{len(messages)} messages enqueued", ids=ids)


def _new_message(index: int, text: Json) -> NewMessage:
    with prefix_fields(f"[{index}]."):
        try:
            given = members(text)
        except ValueError:
            raise InvalidMessage("type", "a member of a JSON object; this is not an object") from None
        return NewMessage.from_members(decode_message(given))


async def _enqueue(messages: Sequence[NewMessage]) -> list[EnqueueResult]:
    queue = async_message_queue()
    try:
        return await queue.enqueue(messages)
    except InvalidMessage:
        for index, message in enumerate(messages):
            with prefix_fields(f"[{index}]."):
                message.arguments(queue.options)
        raise


# Consumers


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

    It responds after 55 s at the latest, because proxies give up after 60 s, and a message in a later response would
    reach no consumer before its deadline.
    """
    options = ReceiveOptions(ack_timeout=ack_timeout, type=type, consumer_id=consumer_id)
    message = await receive_message(options, timeout=min(timeout or 0, MAX_POLL_DURATION), request=request)
    if message is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "not found", "Message not found")
    return Response(message.to_json(), media_type="application/json")


@router.post("/queue/ack", responses=errors(409))
async def ack(body: Annotated[bytes, Depends(MessageBody(AckBody))]) -> ChangedMessage:
    """Acknowledge a message: it is done. 409: its deadline has passed, or another consumer holds it."""
    given = parse_object(body)
    id = decode_member(given, "id")
    if id in (None, ""):
        raise missing("id")
    await async_message_queue().ack(id, _token(given))
    return ChangedMessage(message="Message acknowledged", id=id)


@router.post("/queue/message/{id:path}/nack", responses=errors(404, 409))
async def nack(id: str, body: Annotated[bytes, Depends(MessageBody(NackBody, is_required=False))]) -> Nacked:
    """Report that a delivery failed. The message is delivered again, or dead-lettered after its last attempt."""
    given = parse_object(body)
    reason = decode_member(given, "errorReason")
    if reason is not None:
        checked_reason(reason)
    is_requeued = await async_message_queue().nack(id, _token(given), reason)
    return Nacked(message="Message requeued" if is_requeued else "Message dead-lettered", id=id, requeued=is_requeued)


@router.put("/queue/message/{id:path}/touch", responses=errors(404, 409))
async def touch(id: str, body: Annotated[bytes, Depends(MessageBody(TouchBody, is_required=False))]) -> Touched:
    """Extend the deadline of a message."""
    given = parse_object(body)
    token = _token(given)
    touched = await async_message_queue().touch(id, token, decode_member(given, "extend_seconds"))
    return Touched(
        message="Lock extended successfully",
        new_timeout_at=touched.deadline_at,
        extended_by=whole(touched.extended_by.total_seconds()),
        lock_token=token,
    )


def _token(given: Mapping[str, Json]) -> str | None:
    token = decode_member(given, "lock_token")
    if token not in (None, ""):
        return token  # type: ignore[no-any-return]  # the queue checks it
    if settings().queue_require_lock_token:
        raise missing("lock_token")
    return None


# Long polls


async def receive_message(options: ReceiveOptions, *, timeout: float, request: Request) -> Message | None:
    """Return the next message, or `None`: after `timeout` seconds, or if the client disconnects or loses access."""
    try:
        message = await _while_connected(request, async_message_queue().take(**options), after=CONNECTION_CHECK_DELAY)
        if message is None and timeout:
            message = await _while_connected(request, _wait_for_message(options, timeout, request), after=0)
    except ClientDisconnect:
        return None
    return message


async def _while_connected(request: Request, work: Coroutine[Any, Any, T], *, after: float) -> T:
    """Await `work`, which is canceled if the client disconnects; this is noticed after `after` seconds.

    Raises ClientDisconnect.
    """
    task = asyncio.current_task()
    assert task is not None
    watching: asyncio.Task[None] | None = None

    async def cancel_when_disconnected() -> None:
        await _disconnected(request)
        task.cancel()

    def watch() -> None:
        nonlocal watching
        watching = asyncio.create_task(cancel_when_disconnected())

    timer = asyncio.get_running_loop().call_later(after, watch)
    try:
        return await work
    except asyncio.CancelledError:
        if watching is None or not watching.done() or task.uncancel():
            raise
        raise ClientDisconnect from None
    finally:
        timer.cancel()
        if watching is not None:
            watching.cancel()


async def _wait_for_message(options: ReceiveOptions, timeout: float, request: Request) -> Message | None:
    queue, arrivals, end = async_message_queue(), message_queue().arrivals, time.monotonic() + timeout
    ending: asyncio.Event = request.app.state.ending
    conditions = (until_lost(access_check(request)), ending.wait())
    over: set[asyncio.Task[Any]] = {asyncio.create_task(condition) for condition in conditions}
    try:
        while True:
            arrival, is_used = arrivals.subscribe(options["type"]), False
            try:
                await to_thread.run_sync(arrivals.wait_for_reader, arrival, limiter=READER_THREADS)
                message = await queue.take(**options)
                if message is None:
                    announced = asyncio.wrap_future(arrival)
                    within = max(end - time.monotonic(), 0)
                    await asyncio.wait({announced, *over}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
                    if not announced.done() or any(task.done() for task in over):
                        return None
                    message = await queue.take(**options)
                    is_used = True
                if message is not None:
                    return message
            finally:
                if not is_used:
                    arrivals.unsubscribe(arrival)
    finally:
        for task in over:
            task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
