"""The API described: `/openapi.json` for programs, `/docs` for people, rendered from the same schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse

from queue_manager.web import auth
from queue_manager.web.auth import Current
from queue_manager.web.http.content_negotiation import SAFE
from queue_manager.web.http.errors import REASONS
from queue_manager.web.http.request_body import Body
from queue_manager.web.rendering import rendered
from queue_manager.web.routes.pages.navigation import around

SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-KEY"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "session": {"type": "apiKey", "in": "cookie", "name": "qm_session"},
}

router = APIRouter(include_in_schema=False)
Json = dict[str, Any]


@router.get("/openapi.json")
async def schema(request: Request) -> JSONResponse:
    return JSONResponse(described(request.app))


@router.get("/docs")
async def page(request: Request, who: Current) -> HTMLResponse:
    operations = [
        _shown(method, path, operation)
        for path, methods in described(request.app)["paths"].items()
        for method, operation in methods.items()
    ]
    return rendered("docs.html", **around(request, who), operations=operations)


def install(api: FastAPI) -> None:
    api.include_router(router, dependencies=[auth.viewer])


def described(api: FastAPI) -> Json:
    """Return the schema, with what the rule and the body of each route add to its operation."""
    if api.openapi_schema is None:
        schema = api.openapi()
        schemas = schema["components"]["schemas"]
        for of_framework in ("HTTPValidationError", "ValidationError"):
            schemas.pop(of_framework, None)
        needs_key = api.state.credentials.are_needed
        if needs_key:
            schema["components"]["securitySchemes"] = SCHEMES
        for route, rule in auth.rules(api):
            for method in route.methods or ():
                operation = schema["paths"].get(route.path_format, {}).get(method.lower())
                if operation is not None:
                    body = next(_bodies(route), None)
                    if body is not None:
                        operation["requestBody"], models = _request_body(body)
                        schemas |= models
                    _add_role(operation, method, rule.role, needs_key=needs_key)
    return api.openapi()


def _bodies(route: Any) -> Iterator[Body]:
    return (one.call for one in route.dependant.dependencies if isinstance(one.call, Body))


def _request_body(body: Body) -> tuple[Json, Json]:
    """Return the description of a body, and the models that it refers to."""
    schema = body.schema()
    models = schema.pop("$defs", {})
    return {"required": body.is_required, "content": {"application/json": {"schema": schema}}}, models


def _add_role(operation: Json, method: str, role: str, *, needs_key: bool) -> None:
    """Add who may use an operation, and the errors that this and its body imply."""
    operation["x-role"] = role
    statuses = {400, 413} if "requestBody" in operation else set()
    if role != "public":
        statuses |= {403, 422}
    elif method not in SAFE:
        statuses |= {403}
    if role != "public" and needs_key:
        operation["security"] = [{name: []} for name in SCHEMES]
        statuses |= {401, 429}
    responses = operation["responses"]
    responses.pop("422", None)  # of the framework, in a form of its own
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status in statuses:
        responses[str(status)] = {"description": REASONS[HTTPStatus(status)], "content": error}


def _shown(method: str, path: str, operation: Json) -> Json:
    contents = operation.get("requestBody", {}).get("content", {})
    return {
        "method": method.upper(),
        "path": path,
        "role": operation["x-role"],
        "about": operation["description"],
        "parameters": ", ".join(f"{one['name']} ({one['in']})" for one in operation.get("parameters", ())),
        "bodies": [(kind, json.dumps(content["schema"], indent=1)) for kind, content in contents.items()],
        "statuses": ", ".join(sorted(operation["responses"])),
    }
