"""Live events: each source is read once per process, and its events are sent to all clients as Server-Sent Events.

Guarantee: a client gets every event after its start position, once and in order. A source is read only while there are
listeners, and reading resumes after an outage. The buffer of a listener is bounded: a client that does not keep up is
disconnected without delaying others, and resumes with `Last-Event-ID`. If the events after that id are lost, its first
event is `reset`. Clients are disconnected within 2 s when their key or session ends, at once when the process ends, and
after 10 s in which the source cannot be read; until it can, new clients get 503.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Generic, Protocol, TypeVar

from fastapi import Depends, Header, Query, Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from queue_manager.core.background import cancel
from queue_manager.core.errors import Unavailable, reason
from queue_manager.core.log import get_logger
from queue_manager.web.auth.authentication import access_check, ending

MAX_BUFFER_SIZE = 4 * 1024 * 1024  # bytes of events that wait for one listener
MAX_CHUNK_SIZE = 64 * 1024  # bytes after which no more events are sent in the same write
STREAM_PING_INTERVAL = 15  # seconds
CLIENT_RETRY_DELAY_MS = 1_000  # before a browser reconnects
SEND_TIMEOUT = 20.0  # seconds for one write to a client that does not read
STREAM_END_TIMEOUT = 1.0  # seconds in which streams end by themselves when the process ends
READER_TIMEOUT = 2.0  # seconds that a client waits for the reader
RECONNECT_DELAY = 0.5  # seconds before a source is read again after an error
MAX_OUTAGE = 10.0  # seconds of errors that clients do not notice, as while a server restarts
PING = "ping"
"""The name of events without data: a client that gets them knows that it is connected."""

log = get_logger("QM/events")


class Ordered(Protocol):
    def __gt__(self, other: Any, /) -> bool: ...


PositionT = TypeVar("PositionT", bound=Ordered)
ReaderPosition = Callable[[PositionT | None], Awaitable[PositionT]]
"""Returns how far the reader is, after a short wait if it is behind the given position. Raises `Unavailable`."""


@dataclass(frozen=True)
class Event(Generic[PositionT]):
    """An event of a source. One named `PING` only sends its position."""

    position: PositionT
    id: str
    """The position as clients know it; empty if they cannot resume."""
    name: str
    text: bytes
    """JSON."""

    @cached_property
    def block(self) -> bytes:
        """The encoded event, made once for all clients."""
        data = self.text.decode("utf-8", "replace")
        return bytes(ServerSentEvent(data, event=self.name, id=self.id or None).encode())


def reset(position: PositionT, id: str) -> Event[PositionT]:
    """Return the event for a client that has missed events before this position."""
    message = "Earlier events are no longer stored: read the lists again"
    return Event(position, id, "reset", json.dumps({"message": message}).encode())


@dataclass(frozen=True)
class StartPosition(Generic[PositionT]):
    """The position after which a client starts. `is_gap`: the events after the id that it sent are lost."""

    after: PositionT
    id: str
    is_gap: bool = False


@dataclass(frozen=True)
class ReadBatch(Generic[PositionT]):
    """Events that were read together, and how far the source was read."""

    position: PositionT
    events: Sequence[Event[PositionT]] = ()


class EventsLost(Exception):
    """A source cannot continue after a position: its events are no longer stored."""


class EventSource(ABC, Generic[PositionT]):
    """Reads the events of one server, and nothing else: `Feed` reconnects, logs outages and serves clients."""

    title: str
    """Name of the events in the log."""
    server: str
    """Name of the server in the log and in error messages."""
    outages: tuple[type[Exception], ...] = ()
    """Errors of the server. Clients are disconnected if reading the history raises one of them."""
    has_states = False
    """True if each event replaces the previous one, so that only the latest waits for a listener."""

    @abstractmethod
    async def start(self, last: str | None, reader_position: ReaderPosition[PositionT]) -> StartPosition[PositionT]:
        """Return where a client starts: after the event with the id `last`, or, without one, with new events.

        Raises: Unavailable; an error of bad input.
        """

    @abstractmethod
    def history(self, after: PositionT, until: PositionT) -> AsyncGenerator[Sequence[Event[PositionT]], None]:
        """Yield the events after a position, up to the reader's, in order. A long search also yields empty lists."""

    @abstractmethod
    def live(self, after: PositionT | None) -> AsyncGenerator[ReadBatch[PositionT], None]:
        """Yield the events after a position, or from now on. Yield a batch at once and every few seconds.

        Raises: EventsLost; any error, after which it is called again.
        """

    async def prepare(self, events: Sequence[Event[PositionT]]) -> Sequence[Event[PositionT]]:
        """Return the events as they are sent: those of the history for one client, live ones once for all, if any."""
        return events

    async def close(self) -> None:
        """Close its connections."""


class Listener(Generic[PositionT]):
    """The events that wait for one subscriber."""

    def __init__(self, *, latest_only: bool) -> None:
        self._latest_only = latest_only
        self._events: list[Event[PositionT]] = []
        self._size = 0
        self._has_events = asyncio.Event()
        self.is_ended = False

    def add(self, events: Sequence[Event[PositionT]]) -> None:
        if self.is_ended:  # events were dropped: later ones would hide the gap
            return
        if self._latest_only:
            self._events, self._size = [], 0
            events = events[-1:]
        self._events += events
        self._size += sum(len(event.text) for event in events)
        self._has_events.set()
        if self._size > MAX_BUFFER_SIZE:
            self.end()

    def end(self) -> None:
        self.is_ended = True
        self._events, self._size = [], 0
        self._has_events.set()

    async def next(self) -> list[Event[PositionT]]:
        """Return the waiting events, or wait for some; an empty list after the end."""
        while not self._events and not self.is_ended:
            self._has_events.clear()
            await self._has_events.wait()
        events, self._events, self._size = self._events, [], 0
        return events


class Feed(Generic[PositionT]):
    """Reads a source, while it is entered, and publishes its events to all listeners of this process.

    Args:
        shutdown: is set when the process is told to end, while clients are still connected.
    """

    def __init__(self, source: EventSource[PositionT], shutdown: asyncio.Event) -> None:
        self.source, self._shutdown = source, shutdown
        self._listeners: set[Listener[PositionT]] = set()
        self._has_listeners, self._has_moved = asyncio.Event(), asyncio.Event()
        self._position: PositionT | None = None
        self._failing_since: float | None = None
        self._clients = 0

    async def __aenter__(self) -> Feed[PositionT]:
        self._tasks = [asyncio.create_task(run()) for run in (self._read, self._end_with_process)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._shutdown.set()
        self._end_listeners()
        await cancel(self._tasks)
        await self.source.close()

    @contextmanager
    def subscribe(self) -> Iterator[Listener[PositionT]]:
        """Yield a listener of all events that are read from now on."""
        listener: Listener[PositionT] = Listener(latest_only=self.source.has_states)
        self._listeners.add(listener)
        self._has_listeners.set()
        if self._shutdown.is_set():
            listener.end()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if not self._listeners:
                self._has_listeners.clear()

    async def serve(
        self,
        request: Request,
        last: str | None = None,
        *,
        shown: Callable[[Event[PositionT]], Event[PositionT]] = lambda event: event,
    ) -> EventStream:
        """Return the response to a client that has seen the event with the id `last`. Raises `Unavailable`.

        `shown` returns what this client may see of an event.
        """
        with self.subscribe():  # so that the reader runs
            start = await self.source.start(last, self.reader_position)
        return EventStream(self._blocks(start, access_check(request), shown), ping=_ping)

    async def _blocks(
        self,
        start: StartPosition[PositionT],
        is_over: Callable[[], bool],
        shown: Callable[[Event[PositionT]], Event[PositionT]],
    ) -> AsyncIterator[bytes]:
        yield bytes(ServerSentEvent(retry=CLIENT_RETRY_DELAY_MS, id=start.id or None).encode())
        if start.is_gap:
            yield reset(start.after, start.id).block
        self._clients += 1
        try:
            with self.subscribe() as listener, suppress(*self.source.outages, Unavailable):  # the client reconnects
                async with (
                    ending(listener.end, when=is_over),
                    aclosing(self._events(start.after, listener)) as batches,
                ):
                    async for events in batches:
                        for chunk in _chunks(list(map(shown, events))):
                            yield chunk
        finally:
            self._clients -= 1

    async def _events(
        self, after: PositionT, listener: Listener[PositionT]
    ) -> AsyncGenerator[Sequence[Event[PositionT]], None]:
        """Yield each event after a position once: the history, then what the listener gets."""
        until = await self.reader_position()
        async with aclosing(self.source.history(after, until)) as history:
            async for events in history:
                if listener.is_ended:
                    return
                if events:
                    after = events[-1].position
                    yield await self.source.prepare(events)
        while published := await listener.next():
            if new := [event for event in published if event.position > after]:
                after = new[-1].position
                yield new

    async def reader_position(self, wanted: PositionT | None = None) -> PositionT:
        """Return how far the reader is, as `ReaderPosition` says: subscribers get all later events."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READER_TIMEOUT):
                while self._position is None or (wanted is not None and wanted > self._position):
                    await self._has_moved.wait()
        if self._position is None:
            raise Unavailable(f"{self.source.server} does not answer, so there are no events yet")
        return self._position

    # The reader

    async def _read(self) -> None:
        while True:
            if not self._listeners:
                self._position = None
            await self._has_listeners.wait()
            try:
                await self._read_until_idle()
            except EventsLost:
                self._restart()  # clients that reconnect get a reset
            except Exception as error:  # all listeners depend on this task
                if self._failing_since is None:
                    source = self.source
                    log.warning(f"No {source.title}: {source.server} fails ({reason(error)}); retrying")
                    self._failing_since = time.monotonic()
                elif time.monotonic() - self._failing_since > MAX_OUTAGE:
                    self._restart()  # clients that reconnect get an error, and then what they missed
                await asyncio.sleep(RECONNECT_DELAY)

    async def _read_until_idle(self) -> None:
        async with aclosing(self.source.live(self._position)) as batches:
            async for batch in batches:
                if self._failing_since is not None:
                    log.info(f"{self.source.title.capitalize()} flow again")
                self._failing_since = None
                events = await self.source.prepare(batch.events) if batch.events and self._clients else batch.events
                self._publish(ReadBatch(batch.position, events))
                if not self._listeners:
                    return

    def _publish(self, batch: ReadBatch[PositionT]) -> None:
        if batch.events:
            for listener in self._listeners:
                listener.add(batch.events)
        self._position = batch.position
        self._has_moved.set()
        self._has_moved = asyncio.Event()

    def _restart(self) -> None:
        """Disconnect all clients, and read new events from now on: what happens meanwhile is in their history."""
        self._position = None
        self._end_listeners()

    def _end_listeners(self) -> None:
        for listener in self._listeners:
            listener.end()

    async def _end_with_process(self) -> None:
        await self._shutdown.wait()
        self._end_listeners()


def _ping() -> ServerSentEvent:
    """Return an event, because the scripts of a browser do not see comments."""
    return ServerSentEvent("", event=PING)


def _chunks(events: Sequence[Event[PositionT]]) -> Iterator[bytes]:
    """Join the blocks of events, so that few writes send many events."""
    chunk = b""
    for event in events:
        chunk += event.block
        if len(chunk) >= MAX_CHUNK_SIZE:
            yield chunk
            chunk = b""
    if chunk:
        yield chunk


class EventStream(EventSourceResponse):
    """Events for one client, with pings: comments, unless `ping` returns an event.

    It ends with the client, with the events, or soon after the process.
    """

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[bytes], *, ping: Callable[[], ServerSentEvent] | None = None) -> None:
        super().__init__(
            content,
            ping=STREAM_PING_INTERVAL,
            ping_message_factory=ping,
            send_timeout=SEND_TIMEOUT,
            shutdown_grace_period=STREAM_END_TIMEOUT,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("A client that did not read was disconnected")


def _last_event_id(
    header: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
    query: Annotated[str | None, Query(alias="lastEventId")] = None,
) -> str | None:
    return header or query or None


LastEventId = Annotated[str | None, Depends(_last_event_id)]
"""The id of the last event that a client has seen. The header, which a browser sends to reconnect, takes precedence."""
