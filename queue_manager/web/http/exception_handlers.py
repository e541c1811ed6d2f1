"""Error responses: JSON in the one form of errors for programs, a page with the navigation for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from queue_manager.core.errors import InvalidField, MalformedBody, NotFound, Unavailable, reason, unavailable_server
from queue_manager.core.log import get_logger
from queue_manager.operations.items import DocumentTooLarge
from queue_manager.operations.schemas import invalid_because
from queue_manager.operations.switches import CannotPause
from queue_manager.telemetry import error_reports
from queue_manager.web.html_pages import render_page
from queue_manager.web.http.errors import ApiError
from queue_manager.web.http.requests import SAFE_METHODS, is_page_view
from services.audit import OUTCOME_UNKNOWN
from services.job_queues import DuplicateJob, UnknownJob, WrongState
from services.message_queue import LockLost, MessageInProgress, MessageTooLarge, QueueFull, UnknownMessage, server_name
from services.undo import CannotUndo

ERRORS: dict[type[Exception], tuple[HTTPStatus, str]] = {
    MalformedBody: (HTTPStatus.BAD_REQUEST, "bad request"),
    NotFound: (HTTPStatus.NOT_FOUND, "not found"),
    InvalidField: (HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
    MessageTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large"),
    DocumentTooLarge: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too large"),
    LockLost: (HTTPStatus.CONFLICT, "LOCK_LOST"),
    MessageInProgress: (HTTPStatus.CONFLICT, "message held"),
    UnknownMessage: (HTTPStatus.NOT_FOUND, "not found"),
    QueueFull: (HTTPStatus.SERVICE_UNAVAILABLE, "queue full"),
    UnknownJob: (HTTPStatus.NOT_FOUND, "not found"),
    WrongState: (HTTPStatus.CONFLICT, "wrong state"),
    DuplicateJob: (HTTPStatus.CONFLICT, "blocked"),
    CannotPause: (HTTPStatus.CONFLICT, "conflict"),
    CannotUndo: (HTTPStatus.CONFLICT, "cannot be undone"),
}
"""The errors of services as HTTP statuses, and in a word or two for programs."""
RETRY_AFTER = 5  # seconds, for producers while the server of the queue is full
REQUEST_UNKNOWN = "the outcome of the request is unknown"
NO_SUCH_PATH = "no such path; /docs lists the paths of the systems that are switched on"
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
PROGRAM_PATHS = ("/api/", "/static/", "/socket.io", "/metrics", "/healthz", "/readyz", "/openapi.json")

log = get_logger("QM/queue")


def install(api: FastAPI) -> None:
    """Add the handlers."""
    handlers = {kind: _handler(status, word) for kind, (status, word) in ERRORS.items()}
    for kind, handler in handlers.items():
        api.add_exception_handler(kind, handler)

    @api.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return _response(request, error)

    @api.exception_handler(Unavailable)
    async def unavailable(request: Request, error: Unavailable) -> Response:
        is_unknown = request.method not in SAFE_METHODS and error.__cause__ and unavailable_server(error.__cause__)
        message = _with_outcome(str(error), error, is_unknown=bool(is_unknown))
        return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", message).response()

    @api.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return await handlers[InvalidField](
            request, invalid_because({**first, "loc": first["loc"][1:]})
        )  # no "query" or "path"

    @api.exception_handler(HTTPException)
    async def framework_error(request: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        about = NO_SUCH_PATH if status is HTTPStatus.NOT_FOUND else status.description or status.phrase
        message = f"{request.method} {request.url.path}: {about}"
        headers = {**(error.headers or {})}
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = _allowed_methods(request)
        return _response(request, ApiError(status, status.phrase.lower(), message, headers=headers))

    @api.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> Response:
        error_reports.report(error, where=f"{request.method} {_path_template(request)}")
        message = "Internal error; see the log of this process"
        return _response(request, ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", message))


def _handler(status: HTTPStatus, word: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def service_error(_: Request, error: Exception) -> Response:
        field = error.field if isinstance(error, InvalidField | NotFound) else None
        headers = {"retry-after": str(RETRY_AFTER)} if isinstance(error, QueueFull) else None
        return ApiError(status, word, _with_outcome(str(error), error), field=field, headers=headers).response()

    return service_error


def _with_outcome(text: str, error: Exception, *, is_unknown: bool = False) -> str:
    """Return the text of an error, with what is known of an audited action: see `services.audit.recorded`."""
    notes = getattr(error, "__notes__", [])
    unknown = [REQUEST_UNKNOWN] if is_unknown or OUTCOME_UNKNOWN in notes else []
    return "; ".join([text, *unknown, *(note for note in notes if note != OUTCOME_UNKNOWN)])


async def queue_refused(request: Request, error: Exception) -> Response:
    """Report that the queue's server is reachable and refuses: read-only, busy, a wrong password."""
    log.error("The queue's server refused", path=request.url.path, error=reason(error))
    message = _with_outcome(f"{server_name()} refused ({reason(error)})", error)
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", message).response()


def error_handler(api: FastAPI, error: Exception) -> Any:
    """Return the coroutine function that answers the error; `None` if the error is unexpected."""
    kinds = (kind for kind in type(error).__mro__ if kind is not Exception)
    return next((api.exception_handlers[kind] for kind in kinds if kind in api.exception_handlers), None)


def _response(request: Request, error: ApiError) -> Response:
    if not is_page_view(request) or request.url.path.startswith(PROGRAM_PATHS):
        return error.response()
    principal = getattr(request.state, "principal", None)  # not set for a path that does not exist
    title, message = error.status.phrase.capitalize(), error.message
    if error.status is HTTPStatus.NOT_FOUND:
        title, message = "Page not found", f"There is no page {request.url.path}."
    return render_page("problem.html", request, principal, status=error.status, title=title, message=message)


def _path_template(request: Request) -> str:
    """Return the path with the names of its parameters, so that all requests of a route are grouped."""
    if "route" not in request.scope:
        return "unknown path"
    names = {str(value): f"{{{name}}}" for name, value in request.path_params.items()}
    return "/".join(names.get(part, part) for part in request.url.path.split("/"))  # the route's own path has no prefix


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes of the path; the framework names those of one route only."""
    return ", ".join(method for method in METHODS if _has_route(request, method))


def _has_route(request: Request, method: str) -> bool:
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
