"""The documentation of the API: `/openapi.json` for programs, and `/docs` for people, rendered from the same schema."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse

from queue_manager.web.auth.authorization import EACH, CurrentPrincipal, required_roles, viewer_of
from queue_manager.web.html_pages import render_page
from queue_manager.web.http.errors import STATUS_DESCRIPTIONS
from queue_manager.web.http.requests import SAFE_METHODS, Body
from queue_manager.web.http.schema_fields import body_fields, parameter_fields, resolved

SECURITY_SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-KEY"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "session": {"type": "apiKey", "in": "cookie", "name": "qm_session"},
}

router = APIRouter(dependencies=[viewer_of(EACH)], include_in_schema=False)
OpenApi = dict[str, Any]


@router.get("/openapi.json")
async def schema(request: Request) -> JSONResponse:
    return JSONResponse(openapi_of(request.app))


@router.get("/docs")
async def page(request: Request, principal: CurrentPrincipal) -> HTMLResponse:
    schema = openapi_of(request.app)
    parts: dict[str, list[OpenApi]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            parts.setdefault(operation["tags"][0], []).append(_shown(method, path, operation, schema))
    return render_page("docs.html", request, principal, parts=parts)


def openapi_of(api: FastAPI) -> OpenApi:
    """Return the schema, with the required role and the body of each route."""
    if api.openapi_schema is None:
        schema = api.openapi()
        schemas = schema["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        needs_key = api.state.authenticator.is_required
        if needs_key:
            schema["components"]["securitySchemes"] = SECURITY_SCHEMES
        for route, required in required_roles(api):
            for method in route.methods or ():
                operation = schema["paths"].get(route.path_format, {}).get(method.lower())
                if operation is not None:
                    calls = [one.call for one in route.dependant.dependencies]
                    body = next((call for call in calls if isinstance(call, Body)), None)
                    if body is not None:
                        operation["requestBody"], models = _request_body(body)
                        schemas |= models
                    _add_role(operation, method, required.role, needs_key=needs_key)
    return api.openapi()


def _request_body(body: Body) -> tuple[OpenApi, OpenApi]:
    """Return the description of a body, and the schemas that it refers to."""
    schema = body.schema()
    models = schema.pop("$defs", {})
    contents = {body.media_type: {"schema": schema}, **body.other_contents}
    return {"required": body.is_required, "content": contents}, models


def _add_role(operation: OpenApi, method: str, role: str, *, needs_key: bool) -> None:
    """Add the required role of an operation, and the errors that the role and the body imply."""
    operation["x-role"] = role
    statuses = {400, 413} if "requestBody" in operation else set()
    if role != "public":
        statuses |= {403, 422}
    elif method not in SAFE_METHODS:
        statuses |= {403}
    if role != "public" and needs_key:
        operation["security"] = [{name: []} for name in SECURITY_SCHEMES]
        statuses |= {401, 429}
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own form of errors
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status in statuses:
        responses[str(status)] = {"description": STATUS_DESCRIPTIONS[HTTPStatus(status)], "content": error}


def _shown(method: str, path: str, operation: OpenApi, schema: OpenApi) -> OpenApi:
    contents = operation.get("requestBody", {}).get("content", {})
    models = schema["components"]["schemas"]
    parameters = {"Parameters": parameter_fields(operation.get("parameters", []), models)}
    bodies = {
        f"Body, {'a list, ' if 'items' in content['schema'] else ''}{kind}": body_fields(content["schema"], models)
        for kind, content in contents.items()
    }
    return {
        "method": method.upper(),
        "path": path,
        "role": operation["x-role"],
        "about": [text.replace("\n", " ") for text in operation["description"].split("\n\n")],
        "members": _members(operation, models),
        "inputs": {title: fields for title, fields in (parameters | bodies).items() if fields},
        "statuses": ", ".join(sorted(operation["responses"])),
    }


def _members(operation: OpenApi, models: OpenApi) -> list[str]:
    """Return the names of what a successful JSON response has."""
    for status, response in operation["responses"].items():
        if status[0] == "2":
            described = response.get("content", {}).get("application/json", {}).get("schema", {})
            return [*resolved(described, models).get("properties", ())]
    return []
