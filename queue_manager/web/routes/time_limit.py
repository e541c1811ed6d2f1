"""The time limit of requests that change much: what is left then, the next request changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fastapi import Request

MAX_DURATION = 50.0
"""Seconds of one request: proxies time out after 60."""


def time_check(request: Request) -> Callable[[], bool]:
    """Return a function that returns True after 50 s, or when the process shuts down."""
    ending: asyncio.Event = request.app.state.ending
    ends = time.monotonic() + MAX_DURATION
    return lambda: time.monotonic() >= ends or ending.is_set()
