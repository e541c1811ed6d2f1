"""A task of the event loop, or a thread, that works while a block runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Event, Thread
from typing import Any

CANCEL_AGAIN_AFTER = 1.0  # seconds


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended.

    More than once: in Python 3.11, `asyncio.wait_for` loses a cancellation that comes together with its result, and
    redis-py sends each command by it. The task would never end.
    """
    while left := {task for task in tasks if not task.done()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=CANCEL_AGAIN_AFTER)


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` while the block runs; cancel it when the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await cancel([task])
        with suppress(asyncio.CancelledError):
            await task


@contextmanager
def in_thread(work: Callable[[Event], object], *, name: str) -> Iterator[None]:
    """Run `work` in a thread while the block runs. Its event is set when the block ends, which then waits for it."""
    is_over = Event()
    thread = Thread(target=work, args=[is_over], name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
