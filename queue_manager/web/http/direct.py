"""Routes for message traffic, served with little of the framework's overhead per request.

    router = APIRouter(route_class=DirectRoute)

They are declared and described like all other routes, with the same roles, bodies, parameters and errors.
`DirectRoutes` finds them by method and path before the framework gets the request, and calls their dependencies and
their endpoint itself.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from queue_manager.web.http.exception_handlers import error_handler


class DirectRoute(APIRoute):
    """A route whose endpoint and dependencies are coroutine functions, and whose dependencies take only the request.

    Its query parameters are single values, not lists. If its path has parameters, the framework serves it.
    """


class DirectRoutes:
    """ASGI middleware that serves the direct routes of `api`, and passes all other requests on."""

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
