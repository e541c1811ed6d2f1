"""The API described: `/openapi.json` for programs, `/docs` for people, filled in here from the same schema."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse

from queue_manager.web import auth
from queue_manager.web.auth import Current
from queue_manager.web.rendering import rendered
from queue_manager.web.routes.pages.navigation import around

SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-KEY"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "session": {"type": "apiKey", "in": "cookie", "name": "qm_session"},
}
ERROR = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {name: {"type": "string"} for name in ("error", "message", "field")},
}
REFUSALS = {
    "400": "The body is no JSON, or something is missing",
    "401": "No key, or an unknown or expired one",
    "403": "The key's role does not allow it, or another site's page asked",
    "404": "There is no such thing",
    "409": "Its state does not allow it",
    "413": "The body is too large",
    "422": "A field is not as accepted",
    "429": "Too many wrong keys from this address; see `Retry-After`",
    "503": "A server does not answer",
}

router = APIRouter(include_in_schema=False)
Operation = dict[str, Any]


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


def described(api: FastAPI) -> dict[str, Any]:
    """Return the schema, with what every operation asks for and may refuse."""
    if api.openapi_schema is None:
        schema = api.openapi()
        components = schema.setdefault("components", {})
        components["securitySchemes"] = SCHEMES
        components.setdefault("schemas", {})["Error"] = ERROR
        for route, rule in auth.rules(api):
            for method in route.methods or ():
                operation = schema["paths"].get(route.path_format, {}).get(method.lower())
                if operation is not None:
                    _complete(operation, rule.role)
    return api.openapi()


def _complete(operation: Operation, role: str) -> None:
    operation["x-role"] = role
    if role != "public":
        operation["security"] = [{name: []} for name in SCHEMES]
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status, text in REFUSALS.items():
        operation["responses"][status] = {"description": text, "content": content}


def _shown(method: str, path: str, operation: Operation) -> dict[str, Any]:
    contents = operation.get("requestBody", {}).get("content", {})
    return {
        "method": method.upper(),
        "path": path,
        "role": operation["x-role"],
        "about": operation.get("description") or operation["summary"],
        "parameters": ", ".join(f"{one['name']} ({one['in']})" for one in operation.get("parameters", ())),
        "bodies": [(kind, json.dumps(content["schema"], indent=1)) for kind, content in contents.items()],
    }
