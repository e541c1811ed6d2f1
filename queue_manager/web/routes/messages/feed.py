"""The queue's events, read once for the whole process and passed on to all its listeners.

Guarantee: that of `event_stream`, also over outages of the server, which keeps about 10,000 events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.settings import redact_url
from queue_manager.web.live import event_stream
from queue_manager.web.routes.messages.event_enrichment import with_rows
from services.message_queue import InvalidMessage, QueueAdmin, QueueUnavailable

BLOCK = 2.0  # seconds that one XREAD waits
RETRY_DELAY = 0.5  # seconds between two tries
READER_TIMEOUT = 2.0  # seconds that a listener waits for the reader's first connection
READ_BATCH = 500  # events
NAME = "queue-update"
OPTIONS: dict[str, Any] = {
    "socket_timeout": BLOCK + 3,
    "socket_connect_timeout": 2,
    "retry": Retry(NoBackoff(), 0),
    "protocol": 2,  # by the newer one, an XREAD answers a mapping
}

Position = tuple[int, int]
"""The id of a stream's entry; Redis orders them as Python does."""
START: Position = (0, 0)
MAX_ID_PART = 2**64 - 1

log = get_logger("QM/queue-events")


Event = event_stream.Event[Position]
Beginning = event_stream.Beginning[Position]


class Feed(event_stream.Feed[Position]):
    """The one reader of the events of one queue. It runs while it is entered, and reconnects by itself.

    `contents` reads the messages that events are about, once for all listeners.
    """

    outages = (RedisError, OSError)

    def __init__(self, url: str, stream: str, contents: QueueAdmin) -> None:
        super().__init__()
        self._url, self._stream, self._contents = url, stream, contents
        self._position: Position | None = None
        self._has_position = asyncio.Event()
        self._is_away = False

    async def __aenter__(self) -> Feed:
        self._client = Redis.from_url(self._url, **OPTIONS)
        self._reader = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        await self._client.aclose()

    async def beginning(self, last: Position | None) -> Beginning:
        """Return where to begin for one who has seen everything up to `last`, or wants what comes from now on.

        Raises: QueueUnavailable.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_position.wait(), READER_TIMEOUT)
        if self._position is None:
            raise QueueUnavailable("The queue's server does not answer, so there are no events yet")
        if last is None:
            return _begins(self._position)
        try:
            return _beginning(last, await _kept(self._client, self._stream))
        except (RedisError, OSError) as error:
            raise QueueUnavailable(f"The queue's server does not answer ({reason(error)})") from error

    async def _history(self, after: Position) -> AsyncGenerator[list[Event], None]:
        while True:
            entries: Any = await self._client.xrange(self._stream, min=f"({written(after)}", count=READ_BATCH)
            if events := [_event(entry) for entry in entries]:
                after = events[-1].position
                yield events
            if len(entries) < READ_BATCH:
                return

    # The reader

    async def _run(self) -> None:
        while True:
            try:
                async with Redis.from_url(self._url, **OPTIONS) as client:
                    await self._read(client)
            except Exception as error:  # all listeners depend on this one reader
                if not self._is_away:
                    url = redact_url(self._url)
                    log.warning(f"No queue events: the server at {url} does not give them ({reason(error)}); trying on")
                self._is_away = True
                await asyncio.sleep(RETRY_DELAY)

    async def _read(self, client: Redis) -> None:
        position = await self._resume(client)
        if self._is_away:
            log.info("Queue events flow again")
        self._is_away = False
        while True:
            answer: Any = await client.xread(
                {self._stream: written(position)}, count=READ_BATCH, block=int(BLOCK * 1000)
            )
            for _, entries in answer or []:
                events = [_event(entry) for entry in entries]
                if self.is_watched:
                    events = await asyncio.to_thread(with_rows, events, self._contents)
                self._position = position = events[-1].position
                self._pass_on(events)

    async def _resume(self, client: Redis) -> Position:
        """Return where to read on. A server that came back with less than it had ends all listeners."""
        end = (await _kept(client, self._stream)).end
        if self._position is None or end < self._position:
            if self._position is not None:
                self._let_go()
            self._position = end
        self._has_position.set()
        return self._position


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Which events the server has: from `first` to `end`; and whether it once had earlier ones."""

    first: Position | None
    end: Position
    is_cut: bool


async def _kept(client: Redis, stream: str) -> _Kept:
    try:
        about = await client.xinfo_stream(stream)
    except ResponseError:  # no such stream yet
        return _Kept(first=None, end=START, is_cut=False)
    first = about["first-entry"]
    return _Kept(
        first=position(first[0]) if first else None,
        end=position(about["last-generated-id"]),
        is_cut=about["entries-added"] > about["length"],
    )


def _beginning(last: Position, kept: _Kept) -> Beginning:
    if last > kept.end:  # of a server that has lost its data since
        return _begins(kept.end, is_gap=True)
    is_older = kept.first is not None and last < kept.first
    if is_older and (kept.is_cut or last > START):
        return _begins(START, is_gap=True)
    return _begins(last)


def _begins(after: Position, *, is_gap: bool = False) -> Beginning:
    return Beginning(after, written(after), is_gap)


def checked_position(text: str, field: str) -> Position:
    """Read what a client sent as the id of the last event it has seen. Raises `InvalidMessage`."""
    parts = text.split("-")
    if len(parts) == 2 and all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts):
        read = (int(parts[0]), int(parts[1]))
        if max(read) <= MAX_ID_PART:
            return read
    raise InvalidMessage(field, "the id of an event, such as 1767225600000-0")


def position(id: bytes | str) -> Position:
    milliseconds, sequence = (id.decode() if isinstance(id, bytes) else id).split("-")
    return int(milliseconds), int(sequence)


def written(at: Position) -> str:
    return f"{at[0]}-{at[1]}"


def _event(entry: tuple[bytes, dict[bytes, bytes]]) -> Event:
    id, fields = entry
    return Event(position(id), id.decode(), NAME, fields.get(b"event", b"{}"))
