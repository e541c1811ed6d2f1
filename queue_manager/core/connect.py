"""Waiting for a server that is away: said once clearly, then now and then, until it is back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from queue_manager.core.errors import reason
from queue_manager.core.settings import masked

T = TypeVar("T")
PAUSE = 2.0  # seconds between two tries
SAY_AGAIN_AFTER = 30.0  # seconds


def until_reachable(
    check: Callable[[], T],
    *,
    server: str,
    url: str,
    errors: tuple[type[Exception], ...],
    log: structlog.stdlib.BoundLogger,
) -> T:
    """Return what `check` returns, calling it until it no longer raises one of `errors`."""
    said_at: float | None = None
    while True:
        try:
            result = check()
        except errors as error:
            if said_at is None or time.monotonic() - said_at > SAY_AGAIN_AFTER:
                log.warning(f"{server} at {masked(url)} is unreachable ({reason(error)}); trying until it is back")
                said_at = time.monotonic()
            time.sleep(PAUSE)
        else:
            if said_at is not None:
                log.info(f"{server} at {masked(url)} is back")
            return result
