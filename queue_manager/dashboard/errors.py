"""Every error of the API has one form: `{"error": what, in a word or two, "message": a sentence}`."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from queue_manager.dashboard.servers import Unavailable


class Refused(Exception):
    """The request cannot be answered: with which status, and why."""

    def __init__(self, status: HTTPStatus, error: str, message: str) -> None:
        super().__init__(message)
        self.status, self.error, self.message = status, error, message


def install(api: FastAPI) -> None:
    """Give every error of `api` the one form."""

    @api.exception_handler(Refused)
    async def refused(_: Request, refusal: Refused) -> JSONResponse:
        return _answer(refusal.status, refusal.error, refusal.message)

    @api.exception_handler(Unavailable)
    async def unavailable(_: Request, error: Unavailable) -> JSONResponse:
        return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", str(error))

    @api.exception_handler(HTTPException)
    async def of_the_framework(request: Request, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        message = f"{request.method} {request.url.path}: {status.description or status.phrase}"
        return _answer(status, status.phrase.lower(), message)

    @api.exception_handler(Exception)
    async def unexpected(_: Request, __: Exception) -> JSONResponse:
        return _answer(
            HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", "It failed; the log of this process says why"
        )


def _answer(status: HTTPStatus, error: str, message: str) -> JSONResponse:
    return JSONResponse({"error": error, "message": message}, status_code=status)
