"""Every error of the API has one form: `{"error": what, in a word or two, "message": a sentence, "field"?: whose}`."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from queue_manager.dashboard.servers import Unavailable


class Refused(Exception):
    """The request cannot be answered: with which status, why, and because of which field."""

    def __init__(
        self,
        status: HTTPStatus,
        error: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.error, self.message, self.field, self.headers = status, error, message, field, headers


def install(api: FastAPI) -> None:
    """Give every error of `api` the one form."""

    @api.exception_handler(Refused)
    async def refused(_: Request, refusal: Refused) -> JSONResponse:
        return answer(refusal.status, refusal.error, refusal.message, field=refusal.field, headers=refusal.headers)

    @api.exception_handler(Unavailable)
    async def unavailable(_: Request, error: Unavailable) -> JSONResponse:
        return answer(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", str(error))

    @api.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        field = str(first["loc"][-1])
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", f"{field}: {first['msg']}", field=field)

    @api.exception_handler(HTTPException)
    async def of_the_framework(request: Request, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        message = f"{request.method} {request.url.path}: {status.description or status.phrase}"
        return answer(status, status.phrase.lower(), message, headers=error.headers)

    @api.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> JSONResponse:
        return answer(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", "It failed; the log of this process says why")


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
    # Half of a surrogate pair, which JSON can name and UTF-8 cannot.
    readable = {name: text.encode("utf-8", "replace").decode() for name, text in said.items()}
    return JSONResponse(readable, status_code=status, headers=dict(headers or {}))
