"""ASGI middleware: prefix, security headers, `Host` check, `HEAD`, shutdown, direct routes."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queue_manager.core.loopback import is_loopback
from queue_manager.web.http.errors import ApiError
from queue_manager.web.http.exception_handlers import error_handler

_SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # without it, browsers send our own forms with `Origin: null`
]
_NO_STORE = (b"cache-control", b"no-store")


class SecurityMiddleware:
    """Adds security headers to every response, and `Cache-Control: no-store` unless the route sets that header.

    `local_only`: refuse a request whose `Host` is not a loopback name. Otherwise a page of another site could resolve
    its own name to 127.0.0.1 and pass as ours (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, *, local_only: bool) -> None:
        self._app = app
        self._local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *_SECURITY_HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(_NO_STORE)
                message = {**message, "headers": headers}
            await send(message)

        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif self._local_only and not is_loopback(_host(scope)):
            await _refuse_host(scope, receive, send)
        else:
            await self._app(scope, receive, send_with_headers)


class PrefixMiddleware:
    """Removes `prefix` from the paths of requests, so that the application knows only paths without it.

    Other paths stay as they are: of probes, and of a proxy that has removed the prefix. `raw_path` is the path as sent.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == self._prefix or path.startswith(f"{self._prefix}/"):
            scope = {**scope, "path": path.removeprefix(self._prefix) or "/"}
        await self._app(scope, receive, send)


class HeadMiddleware:
    """Answers `HEAD` with the status and headers of `GET`, without a body; the wrapped application sees a `GET`.

    The response ends after its headers, so that an event stream ends at once. `is_head` in the request's state lets a
    route whose `GET` has an effect refuse the request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})  # the client counts as disconnected from here

        state = {**scope.get("state", {}), "is_head": True}
        await self._app({**scope, "method": "GET", "state": state}, receive, send_headers)


class ShutdownMiddleware:
    """Answers 503 to a request that is not answered when the process has to end. Only the server cancels a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if has_started or scope["type"] != "http":
                raise
            message = "The process is ending; whether the request took effect is unknown"
            error = ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "stopping", message, headers={"retry-after": "1"})
            await error.response()(scope, receive, send)


def _host(scope: Scope) -> str:
    try:
        return urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname or ""
    except ValueError:
        return ""


async def _refuse_host(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": "wrong Host"})
        return
    message = "Without QM_API_KEYS only this machine's own names are accepted as Host"
    await ApiError(HTTPStatus.MISDIRECTED_REQUEST, "wrong host", message).response()(scope, receive, send)


class DirectRoute(APIRoute):
    """A route for message traffic, served with little of the framework's overhead per request.

        router = APIRouter(route_class=DirectRoute)

    It is declared and described like all other routes, with the same roles, bodies, parameters and errors. Its endpoint
    and dependencies are coroutine functions, and its dependencies take only the request. Its query parameters are
    single values, not lists. If its path has parameters, the framework serves it.
    """


class DirectRoutes:
    """Serves the direct routes of `api`, and passes all other requests on.

    It finds them by method and path before the framework gets the request, and calls their dependencies and their
    endpoint itself.
    """

    def __init__(self, app: ASGIApp, api: FastAPI) -> None:
        self._app = app
        self._routes = {
            (method, route.path): _DirectEndpoint(api, route)
            for route in iter_route_contexts(api.routes)
            if isinstance(route.original_route, DirectRoute) and "{" not in str(route.path)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        await (app or self._app)(scope, receive, send)


class _DirectEndpoint:
    def __init__(self, api: FastAPI, route: Any) -> None:
        dependant = route.dependant
        self._api, self._route, self._status = api, route, route.status_code or 200
        self._endpoint, self._request_name = dependant.call, dependant.request_param_name
        self._dependencies = [(one.name, one.call) for one in dependant.dependencies]
        self._parameters = dependant.query_params

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"], scope["route"] = self._api, self._route
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except Exception as error:
            handle = error_handler(self._api, error)
            if handle is None:
                unexpected: Any = self._api.exception_handlers[Exception]
                await (await unexpected(request, error))(scope, receive, send)
                raise  # uvicorn logs it
            response = await handle(request, error)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        """Call the dependencies and the endpoint. Raises their errors, and `RequestValidationError`."""
        values: dict[str, Any] = {}
        for name, dependency in self._dependencies:
            value = await dependency(request)
            if name is not None:
                values[name] = value
        if self._request_name is not None:
            values[self._request_name] = request
        result = await self._endpoint(**values, **self._read_parameters(request))
        if isinstance(result, Response):
            return result
        return Response(result.model_dump_json(), status_code=self._status, media_type="application/json")

    def _read_parameters(self, request: Request) -> dict[str, Any]:
        """Return the parameters of the query by their names in the endpoint, which has the defaults of the others."""
        query = request.query_params if request.scope["query_string"] else {}
        values: dict[str, Any] = {}
        errors: list[Any] = []
        for field in self._parameters:
            location = ("query", field.alias)
            if field.alias in query:
                values[field.name], wrong = field.validate(query[field.alias], loc=location)
                errors += wrong
            elif field.field_info.is_required():
                errors.append({"type": "missing", "loc": location})
        if errors:
            raise RequestValidationError(errors)
        return values
