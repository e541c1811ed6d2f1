"""Operator actions on messages: change, delete, move, replay, clear. Results are per message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from queue_manager.core.clock import from_unix_seconds, to_iso
from queue_manager.core.errors import InvalidField
from queue_manager.core.log import get_logger
from queue_manager.core.wording import many
from queue_manager.operations import switches
from queue_manager.operations.message_fields import RequiredMoment
from queue_manager.operations.message_schemas import (
    Cleared,
    DeletedMessage,
    DeletedMessages,
    DeletedRange,
    EditedMessage,
    Imported,
    MessagePauses,
    Moved,
    Replayed,
    UpdatedMessage,
)
from queue_manager.operations.messages import (
    AUDITED_QUEUE,
    MORE_REMAIN,
    SUCCESSES,
    Change,
    change_messages,
    clear_messages,
    edit_message,
)
from queue_manager.operations.schemas import EmptyIsNone
from queue_manager.web.auth.authorization import CurrentActor
from queue_manager.web.http.errors import errors
from queue_manager.web.http.requests import JsonBody, time_check
from queue_manager.web.routes.messages.requests import (
    MAX_SELECTION_BYTES,
    MAX_TYPES_BYTES,
    LinesBody,
    MessageBody,
    MessageChange,
    MessagesToDelete,
    Move,
    NamedQueue,
    Replay,
    TypesToPause,
    TypesToResume,
)
from services.audit import AuditedAction, recorded
from services.message_queue import Filter, InvalidMessage, MessageState, UnknownMessage, message_queue, queue_admin
from services.message_queue.admin import MessageOutcome, checked_ids
from services.message_queue.browser import KEPT_STATES, KeptState
from services.message_queue.fields import checked_text, decode_message, parse_object
from services.message_queue.transfer import import_messages, parse_lines

log = get_logger("QM/queue")
router = APIRouter(responses=errors(503))

InQueue = Annotated[
    MessageState | None, EmptyIsNone, Query(alias="queueType", description="Only a message that is in this queue.")
]


@router.put("/queue/message/{id:path}", response_model=UpdatedMessage, responses=errors(404, 409))
def update(
    id: str,
    body: Annotated[bytes, Depends(MessageBody(MessageChange))],
    actor: CurrentActor,
    source: InQueue = None,
) -> Response:
    """Change a message. 409: a consumer holds it."""
    changed = edit_message(id, decode_message(parse_object(body)), actor, source=source)
    about = EditedMessage(message="Message updated", id=id, messageId=id, queueType=source).model_dump_json()
    return Response(f'{about[:-1]},"data":{changed.to_json()}}}', media_type="application/json")


@router.delete("/queue/message/{id:path}", responses=errors(404, 409))
def delete(id: str, actor: CurrentActor, source: InQueue = None) -> DeletedMessage:
    """Delete a message."""
    with recorded(actor, "delete", **AUDITED_QUEUE, ids=[checked_text(id, "id")]) as action:
        outcome = queue_admin().delete([id], source=source, keep=action.keeper("message"))[id]
        if outcome != "DELETED":
            raise UnknownMessage(f"There is no message {id} in {source or 'the queue'}")
        action.count = 1
    log.info("Message deleted by an operator", message_id=id)
    return DeletedMessage(message="Message deleted", id=id, messageId=id, queueType=source, undo=action.undo)


@router.post("/queue/messages/delete")
def delete_many(
    body: Annotated[MessagesToDelete, Depends(JsonBody(MessagesToDelete, max_bytes=MAX_SELECTION_BYTES))],
    actor: CurrentActor,
    source: InQueue = None,
) -> DeletedMessages:
    """Delete up to 1,000 messages."""
    with recorded(actor, "delete", **AUDITED_QUEUE, ids=checked_ids(body.messageIds)) as action:
        keep = action.keeper("message")
        outcomes = _change(action, lambda ids, _: queue_admin().delete(ids, source=source, keep=keep))
    return DeletedMessages(**_results("deleted", outcomes), undo=action.undo)


@router.delete("/queue/messages")
def delete_date_range(
    start: Annotated[RequiredMoment, Query(alias="startTimestamp")],
    end: Annotated[RequiredMoment, Query(alias="endTimestamp")],
    actor: CurrentActor,
    source: Annotated[KeptState | None, Query(alias="queueType")] = None,
    is_preview: Annotated[bool, Query(alias="preview", description="Count them, and delete nothing.")] = False,
) -> DeletedRange:
    """Delete the messages that were added between two times, except those that a consumer holds.

    It stops after about 10 s, and `is_complete` is false: repeat it then.
    """
    admin, states, wanted = queue_admin(), (source,) if source else KEPT_STATES, Filter(since=start, until=end)
    undo = None
    if is_preview:
        found = admin.count_matching(states, wanted)
    else:
        selected = {"state": source, "added from": _shown(start), "added until": _shown(end)}
        with recorded(actor, "delete", **AUDITED_QUEUE, filter=selected) as action:
            for found in admin.delete_matching(states, wanted, keep=action.keeper("message")):
                action.count = sum(found.deleted.values())
            action.is_complete = found.is_complete
        undo = action.undo
        log.info("Messages of a date range deleted by an operator", messages=action.count, complete=found.is_complete)
    count = sum(found.deleted.values())
    verb = "would be deleted" if is_preview else "deleted"
    return DeletedRange(
        message=f"{many(count, 'message')} {verb}",
        deletedCount=count,
        by_queue=dict(found.deleted),
        is_preview=is_preview,
        is_complete=found.is_complete,
        undo=undo,
    )


@router.post("/queue/import")
def import_lines(body: Annotated[bytes, Depends(LinesBody())], actor: CurrentActor) -> Imported:
    """Add the messages of an export to the main queue, with no attempts used. A message whose id exists is not added.

    The body may also be a JSON list. If a message is invalid, nothing is added.
    """
    queue = message_queue()
    messages = list(parse_lines(body.splitlines(), queue.options))
    for message in messages:
        if isinstance(message, InvalidMessage):
            raise message
    with recorded(actor, "import", **AUDITED_QUEUE, total=len(messages)) as action:
        for result in import_messages(queue, messages):
            action.count = result.added
    log.info("Messages imported", messages=result.added, known=result.known)
    return Imported(
        message=f"{many(result.added, 'message')} imported",
        count=result.added,
        known=result.known,
        undecodable=result.undecodable,
    )


@router.post("/queue/move")
def move(body: Annotated[Move, Depends(JsonBody(Move, max_bytes=MAX_SELECTION_BYTES))], actor: CurrentActor) -> Moved:
    """Move up to 1,000 messages."""
    if body.toQueue == body.fromQueue:
        raise InvalidField("toQueue", "must be another queue than fromQueue")
    detail = " ".join(filter(None, [f"to {body.toQueue}", body.errorReason and f"({body.errorReason})"]))
    with recorded(actor, "move", **AUDITED_QUEUE, ids=checked_ids(body.messages), detail=detail) as action:
        to, source, reason = body.toQueue, body.fromQueue, body.errorReason
        outcomes = _change(action, lambda ids, _: queue_admin().move(ids, to=to, source=source, reason=reason))
    return Moved(**_results("moved", outcomes))


@router.post("/queue/replay")
def replay(
    body: Annotated[Replay, Depends(JsonBody(Replay, max_bytes=MAX_SELECTION_BYTES))], actor: CurrentActor
) -> Replayed:
    """Replay the dead letters with some ids, or all that match a filter and are there now, the oldest first.

    With a filter it stops after about 10 s, and `is_complete` is false: repeat it then.
    """
    if (body.messageIds is None) == (body.filter is None):
        raise InvalidField("messageIds", "exactly one of messageIds and filter is required")
    if body.messageIds is not None:
        with recorded(actor, "replay", **AUDITED_QUEUE, ids=checked_ids(body.messageIds)) as action:
            outcomes = _change(action, lambda ids, _: queue_admin().replay(ids))
        return Replayed(**_results("moved", outcomes))
    assert body.filter is not None
    with recorded(actor, "replay", **AUDITED_QUEUE, filter=body.filter.model_dump()) as action:
        for replayed in queue_admin().replay_matching(body.filter.to_filter()):
            action.ids, action.count = _succeeded(replayed.outcomes or {}), replayed.moved
            action.total = replayed.moved + replayed.failed
        action.is_complete = replayed.is_complete
    numbers = _numbers("moved", replayed.moved, replayed.failed, is_complete=replayed.is_complete)
    results = {} if replayed.outcomes is None else _listed(replayed.outcomes)
    return Replayed(**numbers, **results, is_complete=replayed.is_complete)


@router.post("/queue/pause")
def pause(
    body: Annotated[TypesToPause, Depends(JsonBody(TypesToPause, max_bytes=MAX_TYPES_BYTES))], actor: CurrentActor
) -> MessagePauses:
    """Deliver no messages of these types, which wait. Those that consumers hold are not affected. At most 30 types."""
    switches.pause_types(actor, body.types, body.reason)
    return MessagePauses(pauses=queue_admin().pauses())


@router.post("/queue/resume")
def resume(
    body: Annotated[TypesToResume, Depends(JsonBody(TypesToResume, max_bytes=MAX_TYPES_BYTES))], actor: CurrentActor
) -> MessagePauses:
    """Deliver messages of these types again, in the order in which they were added."""
    switches.resume_types(actor, body.types)
    return MessagePauses(pauses=queue_admin().pauses())


@router.delete("/queue/clear")
def clear(request: Request, actor: CurrentActor) -> Cleared:
    """Delete all messages of all queues. It stops after 50 s, and `is_complete` is false: repeat it then."""
    return clear_messages(None, actor, is_over=time_check(request))


@router.delete("/queue/{queueType}/clear", responses=errors(404))
def clear_one(queue: NamedQueue, request: Request, actor: CurrentActor) -> Cleared:
    """Delete all messages of one queue. It stops after 50 s, and `is_complete` is false: repeat it then."""
    return clear_messages(queue, actor, is_over=time_check(request))


def _shown(timestamp: float) -> str:
    try:
        return to_iso(from_unix_seconds(timestamp))
    except (OverflowError, ValueError):  # years that Python does not know
        return str(timestamp)


def _change(action: AuditedAction, change: Change) -> dict[str, MessageOutcome]:
    """Change the messages of an action, and return the outcomes by id."""
    outcomes: dict[str, MessageOutcome] = {}
    for of_batch in change_messages(action, action.ids, change):
        outcomes |= of_batch
    return outcomes


def _succeeded(outcomes: Mapping[str, MessageOutcome]) -> list[str]:
    return [id for id, outcome in outcomes.items() if outcome in SUCCESSES]


def _results(verb: str, outcomes: Mapping[str, MessageOutcome]) -> dict[str, Any]:
    done = len(_succeeded(outcomes))
    return _numbers(verb, done, len(outcomes) - done) | _listed(outcomes)


def _listed(outcomes: Mapping[str, MessageOutcome]) -> dict[str, Any]:
    return {"results": [{"id": id, "result": outcome} for id, outcome in outcomes.items()]}


def _numbers(verb: str, done: int, failed: int, *, is_complete: bool = True) -> dict[str, Any]:
    log.info("Messages changed by an operator", done=verb, messages=done, of=done + failed)
    message = f"{done:,} of {many(done + failed, 'message')} {verb}{'' if is_complete else MORE_REMAIN}"
    return {"message": message, verb: done, f"{verb}Count": done, "failed": failed}
