"""Adding messages: one, or many of which all or none are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from queue_manager.web.http.errors import errors
from queue_manager.web.routes.messages import request_body
from queue_manager.web.routes.messages.request_body import MAX_BATCH, BatchBody, MessageBody
from queue_manager.web.routes.messages.schemas import AddedBatch, ChangedMessage, NewMessageBody
from services.message_queue import InvalidMessage, Json, NewMessage, message_queue
from services.message_queue.messages import members

Batch = Annotated[list[NewMessageBody], Field(max_length=MAX_BATCH)]

router = APIRouter(responses=errors(503))


@router.post("/queue/message", status_code=HTTPStatus.CREATED)
def add(body: Annotated[bytes, Depends(MessageBody(NewMessageBody))]) -> ChangedMessage:
    """Add a message. 503 with `Retry-After`: the queue's server is full."""
    message = NewMessage.from_members(request_body.message_of(request_body.object_of(body)))
    (added,) = message_queue().enqueue_batch([message])
    return ChangedMessage(message="Message added successfully", id=added.id)


@router.post("/queue/batch", status_code=HTTPStatus.CREATED)
def add_batch(body: Annotated[bytes, Depends(BatchBody(Batch))]) -> AddedBatch:
    """Add up to 1,000 messages with up to 1 MiB of payloads, all or none."""
    messages = [_read(at, text) for at, text in enumerate(request_body.list_of(body))]
    accepted = _enqueue(messages)
    return AddedBatch(message=f"Batch processed: {accepted}/{len(messages)} messages enqueued")


def _read(at: int, text: Json) -> NewMessage:
    with _naming(at):
        try:
            given = members(text)
        except ValueError:
            raise InvalidMessage("type", "a member of a JSON object; this is not an object") from None
        return NewMessage.from_members(request_body.message_of(given))


def _enqueue(messages: Sequence[NewMessage]) -> int:
    queue = message_queue()
    try:
        return len(queue.enqueue_batch(messages))
    except InvalidMessage:
        for at, message in enumerate(messages):
            with _naming(at):
                message.arguments(queue.options)
        raise


@contextmanager
def _naming(at: int) -> Iterator[None]:
    """Let an `InvalidMessage` name the element of the list, too."""
    try:
        yield
    except InvalidMessage as error:
        error.field = f"[{at}].{error.field}"
        error.args = (f"[{at}].{error}",)
        raise
