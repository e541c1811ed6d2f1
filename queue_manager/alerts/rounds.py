"""The rounds of a web process in which problems are looked for and sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from anyio import to_thread

from queue_manager.alerts.notification import Notification, has_channels, send_to_channels
from queue_manager.alerts.watch import Watch
from queue_manager.core.background import in_background
from queue_manager.core.clock import seconds
from queue_manager.core.log import get_logger
from queue_manager.core.settings import Settings
from queue_manager.health import all_problems, read

ROUND_INTERVAL = seconds(15)

log = get_logger("QM/alerts")


@asynccontextmanager
async def alerting(chosen: Settings, interval: timedelta = ROUND_INTERVAL) -> AsyncIterator[None]:
    """Look for problems within the block, if a channel is configured."""
    if not has_channels(chosen):
        yield
        return
    watch = Watch(
        after=seconds(chosen.qm_alert_after_seconds),
        repeat=seconds(60 * chosen.qm_alert_repeat_minutes),
        send=_send,
    )
    async with in_background(_go_on(watch, interval)):
        yield


def _send(notification: Notification) -> bool:
    """Return whether a channel took the notification."""
    errors = send_to_channels(notification)
    for channel, error in errors.items():
        if error is None:
            log.info("An alert was sent", channel=channel, title=notification.title)
        else:
            log.error("An alert could not be sent", channel=channel, title=notification.title, error=error)
    return None in errors.values()


async def _go_on(watch: Watch, interval: timedelta) -> None:
    while True:
        try:
            await _round(watch)
        except Exception as error:  # alerts must not end with one wrong round
            log.error("Problems could not be looked for", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(interval.total_seconds())


async def _round(watch: Watch) -> None:
    found = await read()
    problems = all_problems(found)
    is_complete = found.in_mongodb is not None and found.in_redis is not None
    await to_thread.run_sync(lambda: watch.evaluate(problems, at=time.monotonic(), is_complete=is_complete))
