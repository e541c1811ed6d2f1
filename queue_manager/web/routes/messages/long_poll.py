"""Long polls: wait for a message, and receive none for a client that has disconnected.

Guarantee: a waiting poll holds no thread; a few threads, apart from those of other requests, search for all polls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypedDict, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.requests import ClientDisconnect

from queue_manager.web.auth.authentication import access_check, until_lost
from services.message_queue import Message, async_message_queue, message_queue
from services.message_queue.errors import SearchIncomplete

T = TypeVar("T")

SEARCH_THREADS = CapacityLimiter(8)
CONNECTION_CHECK_DELAY = 0.05  # seconds that a request for a message takes before its connection is watched


class ReceiveOptions(TypedDict):
    """The arguments of `MessageQueue.take` and `search`."""

    ack_timeout: float | None
    type: str | None
    consumer_id: str | None


async def receive_message(options: ReceiveOptions, *, timeout: float, request: Request) -> Message | None:
    """Return the next message, or `None`: after `timeout` seconds, or if the client disconnects or loses access."""
    try:
        message = await _while_connected(request, async_message_queue().take(**options))
    except ClientDisconnect:
        return None
    return await _wait_for_message(options, timeout, request) if message is None and timeout else message


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, which is canceled if the client disconnects first. Raises ClientDisconnect."""
    task, is_over = asyncio.current_task(), False
    watching: asyncio.Task[None] | None = None

    def watch() -> None:
        nonlocal watching
        watching = asyncio.create_task(_disconnected(request))
        watching.add_done_callback(end)

    def end(watched: asyncio.Task[None]) -> None:
        if task is not None and not is_over and not watched.cancelled():
            task.cancel()

    timer = asyncio.get_running_loop().call_later(CONNECTION_CHECK_DELAY, watch)
    try:
        return await work
    except asyncio.CancelledError:
        if task is None or watching is None or not watching.done() or task.uncancel():
            raise
        raise ClientDisconnect from None
    finally:
        is_over = True
        timer.cancel()
        if watching is not None:
            watching.cancel()


async def _wait_for_message(options: ReceiveOptions, timeout: float, request: Request) -> Message | None:
    ending: asyncio.Event = request.app.state.ending
    conditions: list[Coroutine[Any, Any, Any]] = [
        _disconnected(request),
        until_lost(access_check(request)),
        ending.wait(),
    ]
    tasks = {asyncio.create_task(condition) for condition in conditions}
    try:
        return await _Wait(options, tasks).message(timeout)
    finally:
        for task in tasks:
            task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Wait:
    def __init__(self, options: ReceiveOptions, end_conditions: set[asyncio.Task[Any]]) -> None:
        self._queue, self._options, self._end_conditions = message_queue(), options, end_conditions

    async def message(self, timeout: float) -> Message | None:
        end = time.monotonic() + timeout
        while True:
            arrival, message, is_finished = await to_thread.run_sync(self._search, limiter=SEARCH_THREADS)
            is_used = False
            try:
                if message is not None:
                    return message
                if not is_finished and time.monotonic() < end and not self._must_end():
                    continue
                if not await self._arrived(arrival, within=end - time.monotonic()):
                    return None
                is_used = True
            finally:
                if not is_used:
                    self._queue.arrivals.unsubscribe(arrival)
                if self._must_end():
                    self._queue.arrivals.wake(1)  # the arrival is for another poll

    def _search(self) -> tuple[Future[None], Message | None, bool]:
        """Return the future of an arrival, the message if there is one, and whether the search was finished."""
        arrival = self._queue.arrivals.subscribe(self._options["type"])
        try:
            messages = [] if self._must_end() else self._queue.search(**self._options)
            return arrival, messages[0] if messages else None, True
        except SearchIncomplete:
            return arrival, None, False
        except BaseException:
            self._queue.arrivals.unsubscribe(arrival)
            raise

    async def _arrived(self, arrival: Future[None], *, within: float) -> bool:
        announced = asyncio.wrap_future(arrival)
        await asyncio.wait(
            {announced, *self._end_conditions}, timeout=max(within, 0), return_when=asyncio.FIRST_COMPLETED
        )
        return announced.done() and not self._must_end()

    def _must_end(self) -> bool:
        return any(condition.done() for condition in self._end_conditions)
