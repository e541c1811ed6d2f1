"""Events with the messages that they are about, read once for all pages, which then need no request.

An event has `"messages"`: its messages as they are now, as in a list, with `"place"`; a message that is gone is left
out. The last of several events has `"counts"`, the number of messages in each place. Events about many messages, or
large ones, have no `"messages"`: a page reads its list again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from queue_manager.web.live import event_stream
from services.message_queue import MessageState, QueueAdmin, QueueUnavailable
from services.message_queue.browser import MESSAGE_STATES
from services.message_queue.messages import Message

MAX_MESSAGES = 100  # messages of all events that were read together
MAX_BYTES = 64 * 1024  # bytes of what is sent along

Event = TypeVar("Event", bound=event_stream.Event[Any])


class ForeignEvent(Exception):
    """An event of another program. It is passed on as it is, and delays no other."""


def with_rows(events: Sequence[Event], contents: QueueAdmin) -> list[Event]:
    """Return the events with their messages and counts, as those are now."""
    try:
        counts = contents.counts()
        rows = _rows(events, contents)
    except (QueueUnavailable, ForeignEvent):
        return list(events)
    added = [{} if rows is None else {"messages": _listed(event, rows)} for event in events]
    added[-1]["counts"] = json.dumps({place: counts.of(place) for place in MESSAGE_STATES})
    return [_with(event, members) for event, members in zip(events, added, strict=True)]


def _rows(events: Sequence[Event], contents: QueueAdmin) -> dict[str, str] | None:
    """Return the messages that the events are about, by id; `None`: they are too many, or too large."""
    ids = list(dict.fromkeys(id for event in events for id in _ids(event)))
    if len(ids) > MAX_MESSAGES:
        return None
    rows: dict[str, str] = {}
    size = 0
    for place, message in contents.locate(ids):
        rows[message.id] = _written(place, message)
        size += len(rows[message.id])
        if size > MAX_BYTES:
            return None
    return rows


def _listed(event: Event, rows: Mapping[str, str]) -> str:
    return f"[{','.join(rows[id] for id in _ids(event) if id in rows)}]"


def _ids(event: event_stream.Event[Any]) -> list[str]:
    try:
        payload = json.loads(event.text)["payload"]
        ids = [*payload.get("ids", []), *payload.get("dlq_ids", [])]
        return [id for id in ids if isinstance(id, str)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ForeignEvent from error


def _written(place: MessageState, message: Message) -> str:
    return f'{{"place":"{place}",{message.to_json()[1:]}'


def _with(event: Event, members: Mapping[str, str]) -> Event:
    added = "".join(f',"{name}":{value}' for name, value in members.items())
    return replace(event, text=f"{event.text.decode()[:-1]}{added}}}".encode())
