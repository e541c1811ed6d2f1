"""Background tasks of the message queue in a web process: the event feed and the sweeper."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType

from queue_manager.core.settings import settings
from queue_manager.web.live.event_feed import Feed
from queue_manager.web.routes.messages.events import MessageEvents
from queue_manager.web.routes.messages.overdue_sweeper import OverdueSweeper
from services.message_queue import queue_admin, server_url


class Background:
    """Runs the tasks within the block.

    Args:
        ending: set when the process shuts down, while clients are still connected.
    """

    end: asyncio.Task[None]
    """Done when the process shuts down."""

    def __init__(self, ending: asyncio.Event) -> None:
        self._ending = ending
        self._stack = AsyncExitStack()
        self.feed = Feed(MessageEvents(server_url(), f"{settings().queue_name}:events", queue_admin()), ending)

    async def __aenter__(self) -> Background:
        self.end = asyncio.create_task(self._end_of_process())
        await self._stack.enter_async_context(self.feed)
        await self._stack.enter_async_context(OverdueSweeper(self.feed))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        await self.end
        await self._stack.aclose()

    async def _end_of_process(self) -> None:
        await self._ending.wait()
