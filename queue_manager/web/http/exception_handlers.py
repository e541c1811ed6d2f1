"""Answers to requests that fail: the one form of errors for programs, a page with a way back for people."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from queue_manager.web.http.content_negotiation import is_page_view
from queue_manager.web.http.errors import Refused, answer, invalid_because
from queue_manager.web.rendering import rendered
from queue_manager.web.routes.pages.navigation import around
from queue_manager.web.server_calls import Unavailable

METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
OF_PROGRAMS = ("/api/", "/static/", "/socket.io", "/metrics", "/healthz", "/readyz", "/openapi.json")


def install(api: FastAPI) -> None:
    """Add the handlers."""

    @api.exception_handler(Refused)
    async def refused(request: Request, refusal: Refused) -> Response:
        if _is_page(request):
            return _page(request, refusal.status, refusal.message)
        return answer(refusal.status, refusal.error, refusal.message, field=refusal.field, headers=refusal.headers)

    @api.exception_handler(Unavailable)
    async def unavailable(_: Request, error: Unavailable) -> Response:
        return answer(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", str(error))

    @api.exception_handler(RequestValidationError)
    async def not_valid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        refusal = invalid_because({**first, "loc": first["loc"][1:]})  # without "query" or "path"
        return answer(refusal.status, refusal.error, refusal.message, field=refusal.field)

    @api.exception_handler(HTTPException)
    async def of_the_framework(request: Request, error: HTTPException) -> Response:
        status = HTTPStatus(error.status_code)
        message = f"{request.method} {request.url.path}: {status.description or status.phrase}"
        if _is_page(request):
            return _page(request, status, message)
        headers = error.headers
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {**(headers or {}), "Allow": _allowed(request)}
        return answer(status, status.phrase.lower(), message, headers=headers)

    @api.exception_handler(Exception)
    async def unexpected(request: Request, _: Exception) -> Response:
        status, message = HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error; see the log of this process"
        return _page(request, status, message) if _is_page(request) else answer(status, "internal error", message)


def _allowed(request: Request) -> str:
    """Return the methods of all routes of the path: the framework names only those of one."""
    return ", ".join(method for method in METHODS if _has_route(request, method))


def _has_route(request: Request, method: str) -> bool:
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)


def _is_page(request: Request) -> bool:
    return is_page_view(request) and not request.url.path.startswith(OF_PROGRAMS)


def _page(request: Request, status: HTTPStatus, message: str) -> Response:
    who = getattr(request.state, "who", None)  # nobody is authenticated for a path that does not exist
    return rendered("problem.html", status=status, **around(request, who), title=status.phrase, message=message)
