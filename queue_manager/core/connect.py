"""Waiting until a server is reachable, with a log line at first and then every 30 seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from queue_manager.core.errors import reason
from queue_manager.core.settings import redact_url

T = TypeVar("T")
RETRY_DELAY = 2.0  # seconds
LOG_INTERVAL = 30.0  # seconds


def until_reachable(
    check: Callable[[], T],
    *,
    server: str,
    url: str,
    errors: tuple[type[Exception], ...],
    log: structlog.stdlib.BoundLogger,
) -> T:
    """Call `check` until it raises none of `errors`; return its result."""
    logged_at: float | None = None
    while True:
        try:
            result = check()
        except errors as error:
            if logged_at is None or time.monotonic() - logged_at > LOG_INTERVAL:
                log.warning(
                    f"{server} at {redact_url(url)} is unreachable ({reason(error)}); retrying until it is back"
                )
                logged_at = time.monotonic()
            time.sleep(RETRY_DELAY)
        else:
            if logged_at is not None:
                log.info(f"{server} at {redact_url(url)} is back")
            return result
