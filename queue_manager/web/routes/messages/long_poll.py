"""Long polls: waiting for a message without a thread, and taking nothing for a client that went away.

Guarantee: a waiting poll holds no thread; a few threads search for all of them, apart from those of other requests.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass

from anyio import CapacityLimiter, to_thread
from fastapi import Request

from queue_manager.web.auth import disconnection
from queue_manager.web.routes.messages.background import Background
from services.message_queue import Message, MessageQueue, message_queue
from services.message_queue.errors import SearchIncomplete

SEARCHES = CapacityLimiter(8)


@dataclass(frozen=True, kw_only=True)
class ReceiveOptions:
    """What a consumer asks for."""

    ack_timeout: float | None
    type: str | None
    consumer_id: str | None

    def take(self, queue: MessageQueue) -> Message | None:
        return queue.take(**asdict(self))

    def search(self, queue: MessageQueue) -> Message | None:
        """Raises `SearchIncomplete`."""
        return queue.search(**asdict(self))


async def wait_for(options: ReceiveOptions, patience: float, *, request: Request) -> Message | None:
    """Return the next message, or `None`: after `patience` seconds, or when the client has gone or lost access."""
    background: Background = request.app.state.background
    client_gone = asyncio.create_task(_disconnect(request))
    client_out = asyncio.create_task(disconnection.over(disconnection.is_over(request)))
    try:
        return await _Wait(options, {client_gone, client_out, background.end}).message(patience)
    finally:
        client_gone.cancel()
        client_out.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Wait:
    def __init__(self, options: ReceiveOptions, reasons_to_leave: set[asyncio.Task[None]]) -> None:
        self._queue, self._options, self._leave = message_queue(), options, reasons_to_leave

    async def message(self, patience: float) -> Message | None:
        end = time.monotonic() + patience
        while True:
            arrival, message, is_finished = await to_thread.run_sync(self._search, limiter=SEARCHES)
            is_used = False
            try:
                if message is not None:
                    return message
                if not is_finished and time.monotonic() < end and not self._is_leaving():
                    continue
                if not await self._arrived(arrival, within=end - time.monotonic()):
                    return None
                is_used = True
            finally:
                if not is_used:
                    self._queue.arrivals.unsubscribe(arrival)
                if self._is_leaving():
                    self._queue.arrivals.wake(1)  # the arrival is for another poll

    def _search(self) -> tuple[Future[None], Message | None, bool]:
        """Return where an arrival is announced, the message if there is one, and whether the search was finished."""
        arrival = self._queue.arrivals.subscribe(self._options.type)
        try:
            return arrival, None if self._is_leaving() else self._options.search(self._queue), True
        except SearchIncomplete:
            return arrival, None, False
        except BaseException:
            self._queue.arrivals.unsubscribe(arrival)
            raise

    async def _arrived(self, arrival: Future[None], *, within: float) -> bool:
        told = asyncio.wrap_future(arrival)
        await asyncio.wait({told, *self._leave}, timeout=max(within, 0), return_when=asyncio.FIRST_COMPLETED)
        return told.done() and not self._is_leaving()

    def _is_leaving(self) -> bool:
        return any(reason.done() for reason in self._leave)
