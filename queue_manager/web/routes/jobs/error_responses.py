"""The errors of jobs as HTTP statuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from queue_manager.web.http.errors import ApiError
from services.job_queues import DuplicateJob, InvalidJob, UnknownJob, WrongState

STATUSES: dict[type[Exception], tuple[HTTPStatus, str]] = {
    InvalidJob: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
    UnknownJob: (HTTPStatus.NOT_FOUND, "not found"),
    WrongState: (HTTPStatus.CONFLICT, "wrong state"),
    DuplicateJob: (HTTPStatus.CONFLICT, "blocked"),
}


def install(api: FastAPI) -> None:
    """Answer each error of jobs with its status."""
    for kind in STATUSES:
        api.add_exception_handler(kind, _answer)


@contextmanager
def naming(**fields: str) -> Iterator[None]:
    """Let an `InvalidJob` name a field as the client knows it."""
    try:
        yield
    except InvalidJob as error:
        if error.field not in fields:
            raise
        problem = str(error).partition(": ")[2]
        raise InvalidJob(fields[error.field], problem) from None


async def _answer(_: Request, error: Exception) -> JSONResponse:
    status, word = STATUSES[type(error)]
    return ApiError(status, word, str(error), field=error.field if isinstance(error, InvalidJob) else None).response()
