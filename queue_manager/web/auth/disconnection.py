"""Cutting off those who stay connected when what let them in ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import Request

LOOK_EVERY = 0.5  # seconds; with a second for a changed file, a client that lost access is disconnected within 2


def is_over(request: Request) -> Callable[[], bool]:
    """Return what tells whether the sender of `request` is not admitted any more."""
    credentials, who = request.app.state.credentials, request.state.who
    return lambda: not credentials.still_admit(who)


async def over(is_over: Callable[[], bool]) -> None:
    """Wait until it is so."""
    while not is_over():
        await asyncio.sleep(LOOK_EVERY)


@asynccontextmanager
async def ending(end: Callable[[], None], *, when: Callable[[], bool]) -> AsyncIterator[None]:
    """Call `end` as soon as `when` tells so, while it is entered."""
    task = asyncio.create_task(over(when))
    task.add_done_callback(lambda done: None if done.cancelled() else end())
    try:
        yield
    finally:
        task.cancel()
