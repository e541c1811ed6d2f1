"""The message queue over HTTP, under `/api/queue` and `/api/health`, while `QM_MESSAGE_QUEUE` is true.

Guarantee: a payload is delivered byte for byte; every error has the one form, and names the field; no request of a
client delays another client.
"""

from __future__ import annotations

import redis
from fastapi import FastAPI

from queue_manager.web.auth.authorization import operator_of, viewer_of
from queue_manager.web.http import exception_handlers
from queue_manager.web.routes.messages import (
    activity,
    delivery,
    events,
    listing,
    operator_actions,
    stats,
)
from queue_manager.web.routes.messages.events import MessageEvents, QueueFeed
from queue_manager.web.routes.messages.overdue_sweeper import OverdueSweeper
from services.message_queue import system

__all__ = ["MessageEvents", "OverdueSweeper", "install"]


def install(api: FastAPI, feed: QueueFeed) -> None:
    """Add the routes. Receiving a message needs an operator, because it has an effect although it is a GET."""
    api.state.message_feed = feed
    api.add_exception_handler(redis.RedisError, exception_handlers.queue_refused)
    for part in (delivery, operator_actions):
        api.include_router(part.router, prefix="/api", dependencies=[operator_of(system.name)], tags=["queue"])
    for part in (stats, events, activity, listing):
        api.include_router(part.router, prefix="/api", dependencies=[viewer_of(system.name)], tags=["queue"])
