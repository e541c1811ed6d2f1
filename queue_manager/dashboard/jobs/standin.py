"""What the other parts of the API offer too: the body of a request, and the one form of errors with a field."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from queue_manager.dashboard import errors

HEARD_OUT = 64 * 1024 * 1024  # bytes over the limit: a client that is cut off while it sends never reads the answer


class Refused(errors.Refused):
    """The request cannot be answered: with which status, why, and because of which field."""

    def __init__(self, status: HTTPStatus, error: str, message: str, *, field: str | None = None) -> None:
        super().__init__(status, error, message)
        self.field = field


async def read(request: Request, most: int, *, field: str) -> bytes:
    """Return the body of a request. Raises `Refused`: it is longer than `most` bytes."""
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


def answer(
    status: HTTPStatus,
    error: str,
    message: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return an error in the one form. What a client sent may be quoted in it, whatever its characters."""
    said = {"error": error, "message": message} | ({"field": field} if field is not None else {})
    readable = {name: text.encode("utf-8", "replace").decode() for name, text in said.items()}
    return JSONResponse(readable, status_code=status, headers=dict(headers or {}))


def install(api: FastAPI) -> None:
    """Answer for what `errors.install` does not answer yet."""

    @api.exception_handler(Refused)
    async def refused(_: Request, refusal: Refused) -> JSONResponse:
        return answer(refusal.status, refusal.error, refusal.message, field=refusal.field)

    @api.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = str(first["loc"][-1])
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", f"{field}: {first['msg']}", field=field)
