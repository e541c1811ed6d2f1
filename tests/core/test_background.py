"""Tasks of the event loop end, even if a library loses a cancellation of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from queue_manager.core.background import cancel, in_background
from queue_manager.web.live.event_feed import Feed, ReadBatch
from tests.web.test_event_feed import OneEvent


async def _lose_a_cancellation() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def _go_on() -> None:
    await _lose_a_cancellation()
    await asyncio.Event().wait()


class Deaf(OneEvent):
    """A source that loses a cancellation while it is read."""

    async def live(self, after: int | None) -> AsyncGenerator[ReadBatch[int], None]:
        yield ReadBatch(1, [])
        await _go_on()

    async def close(self) -> None: ...


def test_a_task_that_lost_a_cancellation_is_cancelled_again() -> None:
    async def end() -> bool:
        task = asyncio.create_task(_go_on())
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await cancel([task])
        return task.cancelled()

    assert asyncio.run(end())


def test_a_block_ends_although_its_task_lost_a_cancellation() -> None:
    async def leave() -> None:
        async with asyncio.timeout(30), in_background(_go_on()):
            await asyncio.sleep(0)

    asyncio.run(leave())


def test_a_feed_ends_although_its_source_lost_a_cancellation() -> None:
    async def leave() -> None:
        async with asyncio.timeout(30), Feed(Deaf(), asyncio.Event()) as feed:
            with feed.subscribe():
                await feed.reader_position()

    asyncio.run(leave())
