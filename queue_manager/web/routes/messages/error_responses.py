"""The errors of the queue as HTTP statuses."""

from __future__ import annotations

from http import HTTPStatus

import redis
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.web.http.errors import answer
from services.message_queue import (
    InvalidMessage,
    LockLost,
    MessageInProgress,
    MessageTooLarge,
    QueueFull,
    QueueUnavailable,
    UnknownMessage,
)

RETRY_AFTER = 5  # seconds that a producer is asked to wait while the server is full

STATUSES: dict[type[Exception], tuple[HTTPStatus, str]] = {
    InvalidMessage: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
    MessageTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large"),
    LockLost: (HTTPStatus.CONFLICT, "LOCK_LOST"),
    MessageInProgress: (HTTPStatus.CONFLICT, "message held"),
    UnknownMessage: (HTTPStatus.NOT_FOUND, "not found"),
    QueueFull: (HTTPStatus.SERVICE_UNAVAILABLE, "queue full"),
    QueueUnavailable: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
}

log = get_logger("QM/queue")


def install(api: FastAPI) -> None:
    """Answer each error of the queue with its status."""
    for kind in STATUSES:
        api.add_exception_handler(kind, _refuse)
    api.add_exception_handler(redis.RedisError, _of_the_server)


async def _refuse(_: Request, error: Exception) -> JSONResponse:
    status, word = STATUSES[type(error)]
    headers = {"retry-after": str(RETRY_AFTER)} if isinstance(error, QueueFull) else None
    field = error.field if isinstance(error, InvalidMessage) else None
    return answer(status, word, str(error), field=field, headers=headers)


async def _of_the_server(request: Request, error: Exception) -> JSONResponse:
    """Answer for a server that is there and refuses: read-only, busy, a wrong password."""
    log.error("The queue's server refused", path=request.url.path, error=reason(error))
    return answer(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", f"The queue's server refused ({reason(error)})")
