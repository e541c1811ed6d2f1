"""What people do with messages: change, delete, move, replay, clear. Answers are per message."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from queue_manager.core.log import get_logger
from queue_manager.web.http.openapi import ANY, MOMENT, NUMBER, TEXT, WHOLE, body, many, one_of, thing
from queue_manager.web.routes.messages import request_body
from queue_manager.web.routes.messages.background import Beside
from queue_manager.web.routes.messages.listing import FilterNames, filter_of
from queue_manager.web.routes.messages.message_state import given_place, named_place
from queue_manager.web.routes.messages.query_parameters import Text
from services.message_queue import Filter, InvalidMessage, MessageState, UnknownMessage, queue_admin
from services.message_queue.admin import MAX_BULK_IDS, MESSAGE_STATES
from services.message_queue.messages import checked_id

FILTER = ("type", "priority", "attempts", "startDate", "endDate", "search")

CLEAR_FOR = 50.0
"""Seconds of one request that clears: proxies give up after 60."""
PROGRESS_INTERVAL = 5.0
"""Seconds between two log lines about a long clear."""

log = get_logger("QM/queue")
FILTER_FORM = thing(type=TEXT, priority=WHOLE, attempts=WHOLE, startDate=MOMENT, endDate=MOMENT, search=TEXT)
IDS = many(TEXT)
UPDATE = thing(type=TEXT, payload=ANY, priority=WHOLE, ackTimeout=NUMBER, maxAttempts=WHOLE)
MOVE = thing(
    "messages",
    "toQueue",
    messages=IDS,
    fromQueue=one_of(*MESSAGE_STATES),
    toQueue=one_of(*MESSAGE_STATES),
    errorReason=TEXT,
)

router = APIRouter()


def _source(queue_type: Annotated[Text, Query(alias="queueType")] = None) -> MessageState | None:
    return given_place(queue_type, "queueType")


Source = Annotated[MessageState | None, Depends(_source)]
"""The place of `?queueType=`, anywhere without it."""


@router.put("/queue/message/{id:path}", openapi_extra=body(UPDATE))
def update(id: str, source: Source, body: request_body.OfOne) -> dict[str, str]:
    queue_admin().update(id, request_body.message_of(request_body.object_of(body)), source=source)
    log.info("Message changed by hand", message_id=id)
    return {"message": "Message updated", "id": id}


@router.delete("/queue/message/{id:path}")
def delete(id: str, source: Source) -> dict[str, str]:
    outcome = queue_admin().delete([checked_id(id)], source=source)[id]
    if outcome != "DELETED":
        raise UnknownMessage(f"There is no message {id} in {source or 'the queue'}")
    log.info("Message deleted by hand", message_id=id)
    return {"message": "Message deleted", "id": id}


@router.post("/queue/messages/delete", openapi_extra=body(thing("messageIds", messageIds=IDS)))
def delete_many(source: Source, body: request_body.OfMany) -> dict[str, Any]:
    given = request_body.object_of(body)
    request_body.refuse_others(given, "messageIds")
    ids = _ids(request_body.values_of(given, "messageIds")["messageIds"], "messageIds")
    return _told("deleted", "DELETED", queue_admin().delete(ids, source=source))


@router.post("/queue/move", openapi_extra=body(MOVE))
def move(body: request_body.OfMany) -> dict[str, Any]:
    """Move messages that are named by their ids or, as pages send them, whole."""
    names = ("messages", "fromQueue", "toQueue", "errorReason")
    raw = request_body.object_of(body)
    request_body.refuse_others(raw, *names)
    given = request_body.values_of(raw, *names)
    target, source = given_place(given["toQueue"], "toQueue"), given_place(given["fromQueue"], "fromQueue")
    if target is None:
        raise InvalidMessage("toQueue", "main, dead, acknowledged or archived; it is missing")
    if target == source:
        raise InvalidMessage("toQueue", "another queue than fromQueue")
    why = request_body.reason_of(given["errorReason"], "errorReason")
    outcomes = queue_admin().move(_ids(given["messages"], "messages"), to=target, source=source, reason=why)
    return _told("moved", "MOVED", outcomes)


@router.post("/queue/replay", openapi_extra=body(thing(messageIds=IDS, filter=FILTER_FORM)))
def replay(body: request_body.OfMany) -> dict[str, Any]:
    """Replay the dead letters that are named, or all that match a filter and are there by now, the oldest first.

    Those of a filter are given each a result if they are 1,000 at most. What takes longer than about 10 s is left for
    the next request: then `is_complete` is false.
    """
    raw = request_body.object_of(body)
    request_body.refuse_others(raw, "messageIds", "filter")
    given = request_body.values_of(raw, "messageIds", "filter")
    if (given["messageIds"] is None) == (given["filter"] is None):
        raise InvalidMessage("messageIds", "either messageIds or filter")
    if given["filter"] is None:
        return _told("moved", "MOVED", queue_admin().replay(_ids(given["messageIds"], "messageIds")))
    replayed = queue_admin().replay_matching(_filter(given["filter"]))
    if replayed.outcomes is not None:
        return _told("moved", "MOVED", replayed.outcomes) | {"is_complete": replayed.is_complete}
    return _said("moved", replayed.moved, replayed.failed) | {"is_complete": replayed.is_complete}


@router.delete("/queue/clear")
def clear(request: Request) -> dict[str, Any]:
    return _cleared(None, request)


@router.delete("/queue/{queueType}/clear")
def clear_one(place: Annotated[MessageState, Depends(named_place)], request: Request) -> dict[str, Any]:
    return _cleared(place, request)


def _cleared(place: MessageState | None, request: Request) -> dict[str, Any]:
    """Delete in slices, each of which is an event.

    What takes longer than 50 s, or is not done when the process is told to end, is left for the next request.
    """
    beside: Beside = request.app.state.beside
    begun = logged = time.monotonic()
    count, is_complete = 0, True
    for of_slice in queue_admin().clear_in_batches(place):
        count += of_slice
        now = time.monotonic()
        if now - logged >= PROGRESS_INTERVAL:
            log.info("Clearing by hand", queue=place or "all", messages=count)
            logged = now
        if now - begun >= CLEAR_FOR or beside.end.done():
            is_complete = False
            break
    log.info("Cleared by hand", queue=place or "all", messages=count, complete=is_complete)
    left = "" if is_complete else "; the time was not enough for all, so repeat it"
    return {"message": f"{count} messages deleted{left}", "cleared": count, "is_complete": is_complete}


def _ids(given: Any, field: str) -> list[str]:
    if not isinstance(given, list) or len(given) > MAX_BULK_IDS:
        raise InvalidMessage(field, f"a list of at most {MAX_BULK_IDS} ids")
    return [_id(one, f"{field}[{at}]") for at, one in enumerate(given)]


def _id(given: Any, field: str) -> str:
    return checked_id(given.get("id"), f"{field}.id") if isinstance(given, dict) else checked_id(given, field)


def _filter(given: Any) -> Filter:
    if not isinstance(given, dict):
        raise InvalidMessage("filter", "an object")
    for name in given:
        if name not in FILTER:
            raise InvalidMessage(f"filter.{name[:64]}", f"no such field; the fields are {', '.join(FILTER)}")
    type, priority, attempts, start, end, search = (given.get(name) for name in FILTER)
    names = FilterNames(type="filter.type", priority="filter.priority", attempts="filter.attempts")
    return filter_of(type=type, priority=priority, attempts=attempts, start=start, end=end, search=search, names=names)


def _told(verb: str, success: str, outcomes: Mapping[str, str]) -> dict[str, Any]:
    done = sum(outcome == success for outcome in outcomes.values())
    results = [{"id": id, "result": outcome} for id, outcome in outcomes.items()]
    return _said(verb, done, len(outcomes) - done) | {"results": results}


def _said(verb: str, done: int, failed: int) -> dict[str, Any]:
    log.info("Messages changed by hand", done=verb, messages=done, of=done + failed)
    return {"message": f"{done} of {done + failed} messages {verb}", verb: done, "failed": failed}
