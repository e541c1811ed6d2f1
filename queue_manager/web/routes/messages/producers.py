"""Adding messages: one, or many of which all or none are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus

from fastapi import APIRouter

from queue_manager.web.http.openapi import ANY, NUMBER, TEXT, WHOLE, body, many, thing
from queue_manager.web.routes.messages import request_body
from services.message_queue import InvalidMessage, Json, NewMessage, message_queue
from services.message_queue.messages import members

MESSAGE = thing(
    "type",
    id=TEXT,
    type=TEXT,
    payload=ANY,
    priority=WHOLE,
    ackTimeout=NUMBER,
    maxAttempts=WHOLE,
)

router = APIRouter()


@router.post("/queue/message", status_code=HTTPStatus.CREATED, openapi_extra=body(MESSAGE))
def add(body: request_body.OfOne) -> dict[str, str]:
    message = NewMessage.from_members(request_body.message_of(request_body.object_of(body)))
    (added,) = message_queue().enqueue_batch([message])
    return {"message": "Message added successfully", "id": added.id}


@router.post("/queue/batch", status_code=HTTPStatus.CREATED, openapi_extra=body(many(MESSAGE)))
def add_batch(body: request_body.OfMany) -> dict[str, str]:
    messages = [_read(at, text) for at, text in enumerate(request_body.list_of(body))]
    accepted = _enqueue(messages)
    return {"message": f"Batch processed: {accepted}/{len(messages)} messages enqueued"}


def _read(at: int, text: Json) -> NewMessage:
    with _naming(at):
        try:
            given = members(text)
        except ValueError:
            raise InvalidMessage("type", "a member of a JSON object; this is no object") from None
        return NewMessage.from_members(request_body.message_of(given))


def _enqueue(messages: Sequence[NewMessage]) -> int:
    queue = message_queue()
    try:
        return len(queue.enqueue_batch(messages))
    except InvalidMessage:
        for at, message in enumerate(messages):
            with _naming(at):
                message.arguments(queue.limits)
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
