"""Disconnects clients whose key or session ends while they are connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import Request

from queue_manager.web.auth.authentication import authenticator_of

ACCESS_CHECK_INTERVAL = 0.5  # seconds; with a second for a changed key file, a client is disconnected within 2 s


def is_over(request: Request) -> Callable[[], bool]:
    """Return a function that returns True once the sender of `request` has lost access."""
    authenticator, principal = authenticator_of(request), request.state.principal
    return lambda: not authenticator.is_valid(principal)


async def over(is_over: Callable[[], bool]) -> None:
    """Wait until `is_over` returns True."""
    while not is_over():
        await asyncio.sleep(ACCESS_CHECK_INTERVAL)


@asynccontextmanager
async def ending(end: Callable[[], None], *, when: Callable[[], bool]) -> AsyncIterator[None]:
    """Call `end` once `when` returns True within the block."""
    task = asyncio.create_task(over(when))
    task.add_done_callback(lambda done: None if done.cancelled() else end())
    try:
        yield
    finally:
        task.cancel()
