"""Events for all who listen here: read once for the whole process, sent to each as Server-Sent Events.

Guarantee: a listener gets every event after the one it begins with, in order, once. One that does not keep up is ended,
so that it delays nobody and its buffer is bounded; it comes back with `Last-Event-ID` and goes on there. When that is
not kept any more it is told so by an event `reset`. One whose key or session ends is disconnected within 2 s.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from queue_manager.core.log import get_logger
from queue_manager.web.auth import disconnection
from queue_manager.web.auth.disconnection import ending

LARGEST_BUFFER = 4 * 1024 * 1024  # bytes that wait for one listener
LARGEST_CHUNK = 64 * 1024  # bytes after which no more events are sent in the same write
PING_EVERY = 15  # seconds
RETRY_AFTER_MS = 1_000  # a browser's wait before it comes back
SEND_PATIENCE = 20.0  # seconds for one write to a client that does not read
END_PATIENCE = 1.0  # seconds in which a feed ends its streams by itself when the process ends
GAP = "Events that you have not seen are not kept any more: read the lists anew"

log = get_logger("QM/events")


class Ordered(Protocol):
    def __gt__(self, other: Any, /) -> bool: ...


Position = TypeVar("Position", bound=Ordered)


@dataclass(frozen=True)
class Event(Generic[Position]):
    """Something that happened. Without a name it only says how far a listener has seen everything."""

    position: Position
    id: str
    """The position as clients know it."""
    name: str
    text: bytes
    """JSON."""

    @cached_property
    def block(self) -> bytes:
        """As it is sent: made once for all who listen. Without data it is no event to a browser, which keeps its id."""
        if not self.name:
            return bytes(ServerSentEvent(id=self.id).encode())
        return bytes(ServerSentEvent(self.text.decode("utf-8", "replace"), event=self.name, id=self.id).encode())


def reset(position: Position, id: str) -> Event[Position]:
    """Return what tells a listener that it has missed something before this position."""
    return Event(position, id, "reset", json.dumps({"message": GAP}).encode())


@dataclass(frozen=True)
class Beginning(Generic[Position]):
    """The position after which a listener begins. `is_gap`: what it asked for is not kept (any more)."""

    after: Position
    id: str
    is_gap: bool = False


class Listener(Generic[Position]):
    """The events that wait for one who listens."""

    def __init__(self) -> None:
        self._events: list[Event[Position]] = []
        self._size = 0
        self._news = asyncio.Event()
        self.is_over = False

    def offer(self, events: Sequence[Event[Position]]) -> None:
        self._events += events
        self._size += sum(len(event.text) for event in events)
        self._news.set()
        if self._size > LARGEST_BUFFER:
            self.end()

    def end(self) -> None:
        self.is_over = True
        self._events, self._size = [], 0
        self._news.set()

    async def next(self) -> list[Event[Position]]:
        """Return what has come, or wait for it; nothing when the listener was ended."""
        while not self._events and not self.is_over:
            self._news.clear()
            await self._news.wait()
        events, self._events, self._size = self._events, [], 0
        return events


class Feed(ABC, Generic[Position]):
    """A reader of events that passes them on to all listeners of this process."""

    outages: tuple[type[Exception], ...]
    """What is raised while the server is away: a listener is ended then, and comes back."""

    def __init__(self) -> None:
        self._listeners: set[Listener[Position]] = set()
        self._watching = 0
        self._is_ending = False

    @property
    def is_watched(self) -> bool:
        """Whether any client is sent what is read."""
        return self._watching > 0

    def end_listeners(self) -> None:
        """End all who listen, now and from now on."""
        self._is_ending = True
        self._let_go()

    @contextmanager
    def listening(self) -> Iterator[Listener[Position]]:
        """Give what hears every event that is read from this moment on."""
        listener: Listener[Position] = Listener()
        self._listeners.add(listener)
        if self._is_ending:
            listener.end()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def since(self, after: Position, is_over: Callable[[], bool]) -> AsyncGenerator[list[Event[Position]], None]:
        """Give every event after a position, each once.

        It ends when the listener cannot keep up, the server goes away, or soon after `is_over`.
        """
        self._watching += 1
        try:
            with self.listening() as listener:
                async with ending(listener.end, when=is_over):
                    async with aclosing(self._heard(after, listener)) as heard:
                        async for events in heard:
                            yield events
        finally:
            self._watching -= 1

    async def _heard(
        self, after: Position, listener: Listener[Position]
    ) -> AsyncGenerator[list[Event[Position]], None]:
        with suppress(*self.outages):  # who listened resumes where it was
            async with aclosing(self._history(after)) as history:
                async for events in history:
                    if listener.is_over:
                        return
                    if events:
                        after = events[-1].position
                        yield events
            while events := await listener.next():
                if new := [event for event in events if event.position > after]:
                    after = new[-1].position
                    yield new

    @abstractmethod
    def _history(self, after: Position) -> AsyncGenerator[list[Event[Position]], None]:
        """Yield the events after a position until now, in order, and sometimes an empty list during the search.

        The events passed on after it ends must include all later ones, and may include earlier ones.
        """

    def _pass_on(self, events: Sequence[Event[Position]]) -> None:
        for listener in list(self._listeners):
            listener.offer(events)

    def _let_go(self) -> None:
        for listener in self._listeners:
            listener.end()


class EventStream(EventSourceResponse):
    """Events for one client, with pings. It ends with the client, with the events, or soon after the process."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[bytes | ServerSentEvent]) -> None:
        super().__init__(content, ping=PING_EVERY, send_timeout=SEND_PATIENCE, shutdown_grace_period=END_PATIENCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("A listener that did not read was disconnected")


def listening(request: Request, feed: Feed[Position], beginning: Beginning[Position]) -> EventStream:
    """Return the answer to one who listens to a feed."""
    return EventStream(_sent(feed, beginning, disconnection.is_over(request)))


async def _sent(
    feed: Feed[Position], beginning: Beginning[Position], is_over: Callable[[], bool]
) -> AsyncIterator[bytes]:
    yield bytes(ServerSentEvent(retry=RETRY_AFTER_MS, id=beginning.id).encode())
    if beginning.is_gap:
        yield reset(beginning.after, beginning.id).block
    async with aclosing(feed.since(beginning.after, is_over)) as heard:
        async for events in heard:
            for chunk in _joined(events):
                yield chunk


def _joined(events: Sequence[Event[Position]]) -> Iterator[bytes]:
    waiting, size = list[bytes](), 0
    for event in events:
        waiting.append(event.block)
        size += len(event.block)
        if size >= LARGEST_CHUNK:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
