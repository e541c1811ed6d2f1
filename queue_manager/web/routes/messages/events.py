"""`GET /api/queue/events`: the queue's events, named `queue-update`, from a Redis stream.

Guarantee: that of `event_feed`, also over outages of the server, which keeps about 10,000 events.

Events contain the messages that they are about, so that pages need no request: those of live events are read once for
all pages, while pages are open. An event gets `"messages"`: its messages in their current state, as in a list, with
`"place"`; a message that was deleted is left out. The last of several events gets `"counts"`, the number of messages in
each state. Events about many messages, or large ones, get no `"messages"`: a page reads its list again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from redis.exceptions import RedisError, ResponseError

from queue_manager.core.background import CallThread
from queue_manager.core.errors import Unavailable
from queue_manager.core.redis_client import make_async_client, outage
from queue_manager.core.settings import redact_url, settings
from queue_manager.web.http.errors import errors
from queue_manager.web.live.event_feed import (
    Event,
    EventsLost,
    EventSource,
    EventStream,
    Feed,
    LastEventId,
    ReadBatch,
    ReaderPosition,
    StartPosition,
)
from services.message_queue import (
    InvalidMessage,
    MessageState,
    QueueAdmin,
    QueueUnavailable,
    queue_admin,
    server_name,
    server_url,
)
from services.message_queue.browser import MESSAGE_STATES
from services.message_queue.messages import Message

STREAM_READ_TIMEOUT = 5.0  # seconds that one XREAD waits; a read costs a web process two commands
EVENTS_PER_READ = 500
READ_PAUSE = 0.02  # seconds after a read, so that one read has the events of many changes
MAX_ADDED_MESSAGES = 100  # that are sent along with the events of one read
MAX_ADDED_SIZE = 64 * 1024  # bytes of these messages
MESSAGE_EVENT = "queue-update"
STREAM_OPTIONS: dict[str, Any] = {
    "socket_timeout": STREAM_READ_TIMEOUT + 3,
    "protocol": 2,  # by the newer one, an XREAD answers a mapping
}

EntryId = tuple[int, int]
"""The id of a stream's entry; Redis orders them as Python does."""
QueueEvent = Event[EntryId]
QueueFeed = Feed[EntryId]

FIRST_ENTRY_ID: EntryId = (0, 0)
MAX_ID_PART = 2**64 - 1

router = APIRouter()


@router.get("/queue/events", status_code=HTTPStatus.OK, response_class=EventStream, responses=errors(503))
async def events(
    request: Request,
    last: LastEventId,
    api_key: Annotated[str | None, Query(alias="apiKey", description="Ignored: send the key in a header.")] = None,
) -> EventStream:
    """Send events named `queue-update` for every change of the queue.

    A browser that reconnects sends the header, which takes precedence over the query. If the events after that id are
    no longer kept, the first event is named `reset`: read the lists again.
    """
    feed: QueueFeed = request.app.state.message_feed
    return await feed.serve(request, last)


class MessageEvents(EventSource[EntryId]):
    """The events of one queue. Clients get them with the messages that they are about, which are read once for all."""

    title = "queue events"
    outages = (RedisError, OSError)

    def __init__(self) -> None:
        self.server = f"Redis at {redact_url(server_url())}"
        self._client = make_async_client(server_url(), **STREAM_OPTIONS)
        self._stream, self._admin = f"{settings().queue_name}:events", queue_admin()

    async def start(self, last: str | None, reader_position: ReaderPosition[EntryId]) -> StartPosition[EntryId]:
        seen = None if last is None else _checked_id(last)
        now = await reader_position(None)
        if seen is None:
            return _start(now)
        try:
            return _resumed(seen, await self._kept())
        except self.outages as error:
            raise Unavailable(f"{server_name()} {outage(error)}") from error

    async def history(self, after: EntryId, until: EntryId) -> AsyncGenerator[Sequence[QueueEvent], None]:
        while True:
            found: Any = await self._client.xrange(
                self._stream, min=f"({_written(after)}", max=_written(until), count=EVENTS_PER_READ
            )
            if read := [_event(entry) for entry in found]:
                after = read[-1].position
                yield read
            if len(found) < EVENTS_PER_READ:
                return

    async def live(self, after: EntryId | None) -> AsyncGenerator[ReadBatch[EntryId], None]:
        kept = await self._kept()
        position = kept.end if after is None else after
        if _resumed(position, kept).is_gap:
            raise EventsLost  # the server came back with less than it had
        yield ReadBatch(position)
        while True:
            answer: Any = await self._client.xread(
                {self._stream: _written(position)}, count=EVENTS_PER_READ, block=int(STREAM_READ_TIMEOUT * 1000)
            )
            read = [_event(entry) for _, entries in answer or [] for entry in entries]
            if (await self._kept()).never_had(position):
                raise EventsLost  # for example by FLUSHALL, after which XREAD goes on as if nothing had happened
            position = read[-1].position if read else position
            yield ReadBatch(position, read)
            if read:
                await asyncio.sleep(READ_PAUSE)

    async def prepare(self, events: Sequence[QueueEvent]) -> Sequence[QueueEvent]:
        return await CallThread("message-events").run(_with_messages, events, self._admin)

    async def close(self) -> None:
        await self._client.aclose()

    async def _kept(self) -> _Kept:
        try:
            about = await self._client.xinfo_stream(self._stream)
        except ResponseError:  # no such stream yet
            return _Kept(first=None, end=FIRST_ENTRY_ID, is_cut=False)
        first = about["first-entry"]
        return _Kept(
            first=_entry_id(first[0]) if first else None,
            end=_entry_id(about["last-generated-id"]),
            is_cut=about["entries-added"] > about["length"],
        )


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Which events the server has: from `first` to `end`; and whether it once had earlier ones."""

    first: EntryId | None
    end: EntryId
    is_cut: bool

    def never_had(self, seen: EntryId) -> bool:
        """Return True if the id is that of a server that has lost its data since."""
        is_older = not self.is_cut and self.first is not None and FIRST_ENTRY_ID < seen < self.first
        return seen > self.end or is_older


def _resumed(seen: EntryId, kept: _Kept) -> StartPosition[EntryId]:
    if kept.never_had(seen):
        return _start(kept.end, is_gap=True)
    is_older = kept.first is not None and seen < kept.first
    if is_older and (kept.is_cut or seen > FIRST_ENTRY_ID):
        return _start(FIRST_ENTRY_ID, is_gap=True)
    return _start(seen)


def _start(after: EntryId, *, is_gap: bool = False) -> StartPosition[EntryId]:
    return StartPosition(after, _written(after), is_gap)


def _checked_id(text: str) -> EntryId:
    """Read an id that a client sent. Raises `InvalidMessage`."""
    parts = text.split("-")
    if len(parts) == 2 and all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts):
        id = (int(parts[0]), int(parts[1]))
        if max(id) <= MAX_ID_PART:
            return id
    raise InvalidMessage("Last-Event-ID", "the id of an event, such as 1767225600000-0")


def _entry_id(id: bytes | str) -> EntryId:
    milliseconds, sequence = (id.decode() if isinstance(id, bytes) else id).split("-")
    return int(milliseconds), int(sequence)


def _written(id: EntryId) -> str:
    return f"{id[0]}-{id[1]}"


def _event(entry: tuple[bytes, dict[bytes, bytes]]) -> QueueEvent:
    id, fields = entry
    return Event(_entry_id(id), id.decode(), MESSAGE_EVENT, fields.get(b"event", b"{}"))


# The messages that events are about


class ForeignEvent(Exception):
    """An event of another program. It is passed on unchanged, and delays no other."""


def _with_messages(events: Sequence[QueueEvent], admin: QueueAdmin) -> Sequence[QueueEvent]:
    """Return the events with their current messages and counts."""
    try:
        counts = admin.counts()
        messages = _messages(events, admin)
    except (QueueUnavailable, ForeignEvent):
        return events
    added = [{} if messages is None else {"messages": _listed(event, messages)} for event in events]
    added[-1]["counts"] = json.dumps({state: counts.of(state) for state in MESSAGE_STATES})
    return [_extended(event, members) for event, members in zip(events, added, strict=True)]


def _messages(events: Sequence[QueueEvent], admin: QueueAdmin) -> dict[str, str] | None:
    """Return the messages that the events are about, as JSON by id; `None` if they are too many or too large."""
    ids = list(dict.fromkeys(id for event in events for id in _ids(event)))
    if len(ids) > MAX_ADDED_MESSAGES:
        return None
    messages: dict[str, str] = {}
    size = 0
    for state, message in admin.locate(ids):
        messages[message.id] = _json(state, message)
        size += len(messages[message.id])
        if size > MAX_ADDED_SIZE:
            return None
    return messages


def _listed(event: QueueEvent, messages: Mapping[str, str]) -> str:
    return f"[{','.join(messages[id] for id in _ids(event) if id in messages)}]"


def _ids(event: QueueEvent) -> list[str]:
    try:
        payload = json.loads(event.text)["payload"]
        ids = [*payload.get("ids", []), *payload.get("dlq_ids", [])]
        return [id for id in ids if isinstance(id, str)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ForeignEvent from error


def _json(state: MessageState, message: Message) -> str:
    return f'{{"place":"{state}",{message.to_json()[1:]}'


def _extended(event: QueueEvent, members: Mapping[str, str]) -> QueueEvent:
    added = "".join(f',"{name}":{value}' for name, value in members.items())
    return replace(event, text=f"{event.text.decode()[:-1]}{added}}}".encode())
