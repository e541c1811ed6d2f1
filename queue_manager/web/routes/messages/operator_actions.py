"""Operator actions on messages: change, delete, move, replay, clear. Results are per message."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from queue_manager.core.log import get_logger
from queue_manager.web.http.errors import errors, invalid
from queue_manager.web.http.requests import EmptyIsNone, JsonBody
from queue_manager.web.routes.messages.background import Background
from queue_manager.web.routes.messages.requests import (
    MAX_BATCH_BYTES,
    LinesBody,
    MessageBody,
    NamedQueue,
    RequiredMoment,
    decode_message,
    parse_object,
)
from queue_manager.web.routes.messages.response_schemas import (
    Cleared,
    DeletedMessages,
    DeletedRange,
    EditedMessage,
    Imported,
    Moved,
    Replayed,
    UpdatedMessage,
)
from queue_manager.web.routes.messages.schemas import (
    MessageChange,
    MessagesToDelete,
    Move,
    Replay,
)
from services.message_queue import Filter, MessageState, UnknownMessage, message_queue, queue_admin
from services.message_queue.browser import KEPT_STATES, KeptState
from services.message_queue.messages import checked_id
from services.message_queue.transfer import import_messages, parse_lines

MAX_CLEAR_DURATION = 50.0
"""Seconds of one request that clears: proxies time out after 60."""
CLEAR_LOG_INTERVAL = 5.0
"""Seconds between two log lines about a long clear."""

log = get_logger("QM/queue")
router = APIRouter(responses=errors(503))

InQueue = Annotated[
    MessageState | None, EmptyIsNone, Query(alias="queueType", description="Only a message that is in this queue.")
]


@router.put("/queue/message/{id:path}", response_model=UpdatedMessage, responses=errors(404, 409))
def update(id: str, body: Annotated[bytes, Depends(MessageBody(MessageChange))], source: InQueue = None) -> Response:
    """Change a message. 409: a consumer holds it."""
    queue_admin().update(id, decode_message(parse_object(body)), source=source)
    log.info("Message changed by hand", message_id=id)
    changed = queue_admin().find(id)
    about = EditedMessage(message="Message updated", id=id, messageId=id, queueType=source).model_dump_json()
    data = changed.to_json() if changed else "null"
    return Response(f'{about[:-1]},"data":{data}}}', media_type="application/json")


@router.delete("/queue/message/{id:path}", responses=errors(404, 409))
def delete(id: str, source: InQueue = None) -> EditedMessage:
    """Delete a message."""
    outcome = queue_admin().delete([checked_id(id)], source=source)[id]
    if outcome != "DELETED":
        raise UnknownMessage(f"There is no message {id} in {source or 'the queue'}")
    log.info("Message deleted by hand", message_id=id)
    return EditedMessage(message="Message deleted", id=id, messageId=id, queueType=source)


@router.post("/queue/messages/delete")
def delete_many(
    body: Annotated[MessagesToDelete, Depends(JsonBody(MessagesToDelete, max_bytes=MAX_BATCH_BYTES))],
    source: InQueue = None,
) -> DeletedMessages:
    """Delete up to 1,000 messages."""
    return DeletedMessages(**_results("deleted", "DELETED", queue_admin().delete(body.messageIds, source=source)))


@router.delete("/queue/messages")
def delete_date_range(
    start: Annotated[RequiredMoment, Query(alias="startTimestamp")],
    end: Annotated[RequiredMoment, Query(alias="endTimestamp")],
    source: Annotated[KeptState | None, EmptyIsNone, Query(alias="queueType")] = None,
    is_preview: Annotated[bool, Query(alias="preview", description="Count them, and delete nothing.")] = False,
) -> DeletedRange:
    """Delete the messages that were added between two times, for about 10 s; those that a consumer holds are kept."""
    admin, states, wanted = queue_admin(), (source,) if source else KEPT_STATES, Filter(since=start, until=end)
    found = admin.count_matching(states, wanted) if is_preview else admin.delete_matching(states, wanted)
    count = sum(found.deleted.values())
    if not is_preview:
        log.info("Messages of a date range deleted by hand", messages=count, complete=found.is_complete)
    verb = "would be deleted" if is_preview else "deleted"
    return DeletedRange(
        message=f"{count} messages {verb}",
        deletedCount=count,
        by_queue=dict(found.deleted),
        is_preview=is_preview,
        is_complete=found.is_complete,
    )


@router.post("/queue/import")
def import_lines(body: Annotated[bytes, Depends(LinesBody())]) -> Imported:
    """Add the messages of an export to the main queue, with no attempts used. A message whose id exists is not added.

    The body may also be a JSON list. If a message is invalid, nothing is added.
    """
    queue = message_queue()
    result = import_messages(queue, list(parse_lines(body.splitlines(), queue.options)))
    log.info("Messages imported", messages=result.added, known=result.known)
    return Imported(
        message=f"{result.added} messages imported",
        count=result.added,
        known=result.known,
        undecodable=result.undecodable,
    )


@router.post("/queue/move")
def move(body: Annotated[Move, Depends(JsonBody(Move, max_bytes=MAX_BATCH_BYTES))]) -> Moved:
    """Move up to 1,000 messages."""
    if body.toQueue == body.fromQueue:
        raise invalid("toQueue", "must be another queue than fromQueue")
    outcomes = queue_admin().move(body.messages, to=body.toQueue, source=body.fromQueue, reason=body.errorReason)
    return Moved(**_results("moved", "MOVED", outcomes))


@router.post("/queue/replay")
def replay(body: Annotated[Replay, Depends(JsonBody(Replay, max_bytes=MAX_BATCH_BYTES))]) -> Replayed:
    """Replay the dead letters with some ids, or all that match a filter and are there now, the oldest first.

    With a filter it stops after about 10 s, and `is_complete` is false: repeat it then.
    """
    if (body.messageIds is None) == (body.filter is None):
        raise invalid("messageIds", "must be given, or filter, but not both")
    if body.messageIds is not None:
        return Replayed(**_results("moved", "MOVED", queue_admin().replay(body.messageIds)))
    assert body.filter is not None
    replayed = queue_admin().replay_matching(body.filter.to_filter())
    if replayed.outcomes is not None:
        return Replayed(**_results("moved", "MOVED", replayed.outcomes), is_complete=replayed.is_complete)
    return Replayed(**_numbers("moved", replayed.moved, replayed.failed), is_complete=replayed.is_complete)


@router.delete("/queue/clear")
def clear(request: Request) -> Cleared:
    """Delete all messages of all queues, for 50 s at most."""
    return _cleared(None, request)


@router.delete("/queue/{queueType}/clear", responses=errors(404))
def clear_one(queue: NamedQueue, request: Request) -> Cleared:
    """Delete all messages of one queue, for 50 s at most."""
    return _cleared(queue, request)


def _cleared(queue: MessageState | None, request: Request) -> Cleared:
    """Delete in batches, each of which is an event.

    Stops after 50 s, or when the process shuts down; the rest is left for the next request.
    """
    background: Background = request.app.state.background
    started_at = logged_at = time.monotonic()
    count, is_complete = 0, True
    for deleted in queue_admin().clear_in_batches(queue):
        count += deleted
        now = time.monotonic()
        if now - logged_at >= CLEAR_LOG_INTERVAL:
            log.info("Clearing by hand", queue=queue or "all", messages=count)
            logged_at = now
        if now - started_at >= MAX_CLEAR_DURATION or background.end.done():
            is_complete = False
            break
    log.info("Cleared by hand", queue=queue or "all", messages=count, complete=is_complete)
    left = "" if is_complete else "; there are more, so repeat it"
    message = f"{count} messages deleted{left}"
    return Cleared(message=message, queueType=queue, cleared=count, is_complete=is_complete)


def _results(verb: str, success: str, outcomes: Mapping[str, str]) -> dict[str, Any]:
    done = sum(outcome == success for outcome in outcomes.values())
    results = [{"id": id, "result": outcome} for id, outcome in outcomes.items()]
    return _numbers(verb, done, len(outcomes) - done) | {"results": results}


def _numbers(verb: str, done: int, failed: int) -> dict[str, Any]:
    log.info("Messages changed by hand", done=verb, messages=done, of=done + failed)
    message = f"{done} of {done + failed} messages {verb}"
    return {"message": message, verb: done, f"{verb}Count": done, "failed": failed}
