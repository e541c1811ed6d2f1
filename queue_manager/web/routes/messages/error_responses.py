"""The errors of the queue as HTTP statuses."""

from __future__ import annotations

from http import HTTPStatus

import redis
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.web.http.errors import ApiError
from services.message_queue import (
    InvalidMessage,
    LockLost,
    MessageInProgress,
    MessageTooLarge,
    QueueFull,
    UnknownMessage,
)

RETRY_AFTER = 5  # seconds, for producers while the server is full

QUEUE_ERRORS: dict[type[Exception], tuple[HTTPStatus, str]] = {
    InvalidMessage: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
    MessageTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large"),
    LockLost: (HTTPStatus.CONFLICT, "LOCK_LOST"),
    MessageInProgress: (HTTPStatus.CONFLICT, "message held"),
    UnknownMessage: (HTTPStatus.NOT_FOUND, "not found"),
    QueueFull: (HTTPStatus.SERVICE_UNAVAILABLE, "queue full"),
}

log = get_logger("QM/queue")


def install(api: FastAPI) -> None:
    """Add the handlers."""
    for kind in QUEUE_ERRORS:
        api.add_exception_handler(kind, _queue_error)
    api.add_exception_handler(redis.RedisError, _server_error)


async def _queue_error(_: Request, error: Exception) -> JSONResponse:
    status, word = QUEUE_ERRORS[type(error)]
    headers = {"retry-after": str(RETRY_AFTER)} if isinstance(error, QueueFull) else None
    field = error.field if isinstance(error, InvalidMessage) else None
    return ApiError(status, word, str(error), field=field, headers=headers).response()


async def _server_error(request: Request, error: Exception) -> JSONResponse:
    """Report that the queue's server is reachable and refuses: read-only, busy, a wrong password."""
    log.error("The queue's server refused", path=request.url.path, error=reason(error))
    message = f"The queue's server refused ({reason(error)})"
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", message).response()
