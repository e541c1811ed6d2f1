"""Bodies of requests, bounded while they come in."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import Request
from starlette.requests import ClientDisconnect

from queue_manager.web.http.errors import Refused

HEARD_OUT = 64 * 1024 * 1024  # bytes over the limit: a client that is cut off while it sends never reads the answer


async def read(request: Request, most: int, *, field: str) -> bytes:
    """Return the body. Raises `Refused`: it is longer than `most` bytes, because of `field`."""
    body, size = bytearray(), 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= most:
                body += chunk
            elif size > most + HEARD_OUT:
                break
    except ClientDisconnect:
        raise malformed("it ended early") from None
    if size > most:
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        raise Refused(status, "too large", f"{field}: accepted are at most {most} bytes", field=field)
    return bytes(body)


def malformed(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, "bad request", f"body: accepted is JSON in UTF-8 ({why})", field="body")
