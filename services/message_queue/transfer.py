"""Import of messages from JSON lines, as an export writes them, or from a JSON list, as an older service exports them.

Guarantee: a message whose id exists, also among the last 100 acknowledged ones, is not added again. Messages are added
in batches, none of which blocks the server for more than about 10 ms.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from queue_manager.core.errors import prefix_fields
from services.message_queue.errors import InvalidMessage
from services.message_queue.fields import MAX_ENQUEUED_MESSAGES, Json, elements, members
from services.message_queue.messages import FIELD_ALIASES, NewMessage, QueueOptions
from services.message_queue.operations import MAX_ENQUEUED_BYTES
from services.message_queue.queue import MessageQueue

ParsedMessage: TypeAlias = NewMessage | InvalidMessage | None
"""A message, why it is invalid, or `None` for one that was exported as undecodable."""


@dataclass(kw_only=True)
class ImportResult:
    """Number of messages that were added, that exist already, and that cannot be delivered; why others are invalid."""

    added: int = 0
    known: int = 0
    undecodable: int = 0
    refused: list[str] = field(default_factory=list)


def import_messages(queue: MessageQueue, messages: Iterable[ParsedMessage]) -> Iterator[ImportResult]:
    """Add messages to the main queue in batches, with no attempts used. Yield the result so far after each batch.

    Raises QueueFull, QueueUnavailable; earlier batches are then added.
    """
    result = ImportResult()
    batch: list[NewMessage] = []
    size = 0

    def add() -> None:
        for added in queue.enqueue_batch(batch):
            result.added += added.is_new
            result.known += not added.is_new
        batch.clear()

    for message in messages:
        if message is None:
            result.undecodable += 1
            continue
        if isinstance(message, InvalidMessage):
            result.refused.append(str(message))
            continue
        length = len(message.payload.encode())
        if len(batch) == MAX_ENQUEUED_MESSAGES or size + length > MAX_ENQUEUED_BYTES:
            add()
            yield result
            size = 0
        batch.append(message)
        size += length
    add()
    yield result


def parse_lines(lines: Iterable[bytes], options: QueueOptions) -> Iterator[ParsedMessage]:
    """Yield the message of each line that is not empty, or an error that names the line.

    If the first line begins a JSON list, its elements are the messages, and errors name the index. Members other than
    those of a new message are ignored. Raises `InvalidMessage` for an invalid list.
    """
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    is_first = True
    for number, line in numbered:
        if is_first and line.lstrip().startswith(b"["):
            list_text = b"\n".join([line, *(following for _, following in numbered)])
            for index, element in enumerate(_elements(list_text)):
                yield _parse(element.encode(), options, f"[{index}]: ")
        else:
            yield _parse(line, options, f"line {number}: ")
        is_first = False


def _elements(list_text: bytes) -> list[Json]:
    try:
        return elements(list_text.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidMessage("body", f"a JSON list ({error})") from None


def _parse(line: bytes, options: QueueOptions, place: str) -> ParsedMessage:
    try:
        with prefix_fields(place):
            return _message(line, options)
    except InvalidMessage as error:
        return error


def _message(line: bytes, options: QueueOptions) -> NewMessage | None:
    try:
        given = members(line.decode())
        payload = given.pop("payload", Json("null"))
        names = [name for name in given if FIELD_ALIASES.get(name, name) in NewMessage.__annotations__]
        known = {name: json.loads(given[name]) for name in names}
    except (ValueError, RecursionError) as error:
        raise InvalidMessage("body", f"a JSON object ({error})") from None
    if given.get("undecodable") == "true":
        return None
    message = NewMessage.from_members({**known, "payload": payload})
    message.arguments(options)
    return message
