"""Direct routes behave as routes of the framework do."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from http import HTTPStatus
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.types import ASGIApp

from queue_manager.web.http import exception_handlers
from queue_manager.web.http.errors import ApiError
from queue_manager.web.http.middleware import DirectRoute, DirectRoutes
from tests.reported_errors import collected, exception


class Sum(BaseModel):
    total: int
    by: str


async def _caller(request: Request) -> str:
    return request.headers.get("x-caller", "nobody")


router = APIRouter(route_class=DirectRoute)


@router.post("/sum", status_code=HTTPStatus.CREATED)
async def add(
    request: Request,
    caller: Annotated[str, Depends(_caller)],
    first: int,
    second: Annotated[int, Query(alias="secondNumber", ge=0)] = 5,
) -> Sum:
    if first == 13:
        raise ApiError(HTTPStatus.CONFLICT, "unlucky", f"{request.method} refuses 13")
    if first == 14:
        raise LookupError("not expected")
    return Sum(total=first + second, by=caller)


@router.get("/raw")
async def raw() -> JSONResponse:
    return JSONResponse([1, 2])


@router.get("/things/{id}")
async def thing(id: str) -> Sum:
    if id == "14":
        raise LookupError("not expected")
    return Sum(total=0, by=id)


@pytest.fixture(scope="module", params=[True, False], ids=["direct", "by the framework"])
def api(request: pytest.FixtureRequest) -> ASGIApp:
    """The same routes, with and without the middleware."""
    api = FastAPI()
    exception_handlers.install(api)
    api.include_router(router, prefix="/api")
    return DirectRoutes(api, api=api) if request.param else api


def ask(
    api: ASGIApp, method: str, path: str, query: str = "", *, raises: type[Exception] | None = None, **headers: str
) -> tuple[int, Any]:
    """Return the status and the decoded body of the response, after which an unexpected error is raised."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }

    async def respond() -> None:
        await api(scope, receive, send)

    with pytest.raises(raises) if raises is not None else nullcontext():
        asyncio.run(respond())
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


def test_values_come_from_dependencies_and_the_query(api: ASGIApp) -> None:
    assert ask(api, "POST", "/api/sum", "first=1", x_caller="ada") == (201, {"total": 6, "by": "ada"})
    assert ask(api, "POST", "/api/sum", "first=1&secondNumber=2") == (201, {"total": 3, "by": "nobody"})


@pytest.mark.parametrize(
    ("query", "field"), [("", "first"), ("first=x", "first"), ("first=1&secondNumber=-1", "secondNumber")]
)
def test_a_wrong_parameter_is_named(api: ASGIApp, query: str, field: str) -> None:
    status, body = ask(api, "POST", "/api/sum", query)
    assert (status, body["field"]) == (422, field)


def test_an_exception_is_converted_by_its_handler(api: ASGIApp) -> None:
    assert ask(api, "POST", "/api/sum", "first=13") == (409, {"error": "unlucky", "message": "POST refuses 13"})
    status, body = ask(api, "POST", "/api/sum", "first=14", raises=LookupError)
    assert (status, body["error"]) == (500, "internal error")


def test_an_unexpected_error_is_reported_once(api: ASGIApp, monkeypatch: pytest.MonkeyPatch) -> None:
    with collected(monkeypatch) as events:
        ask(api, "POST", "/api/sum", "first=13")
        ask(api, "POST", "/api/sum", "first=14", raises=LookupError)
        ask(api, "GET", "/api/things/14", raises=LookupError)
    assert [exception(event)["value"] for event in events] == ["not expected"] * 2
    assert [event["tags"]["where"] for event in events] == ["POST /api/sum", "GET /api/things/{id}"]


def test_a_response_is_sent_as_it_is(api: ASGIApp) -> None:
    assert ask(api, "GET", "/api/raw") == (200, [1, 2])


def test_other_methods_and_paths_with_parameters_are_handled_by_the_framework(api: ASGIApp) -> None:
    assert ask(api, "POST", "/api/raw")[0] == 405
    assert ask(api, "GET", "/api/things/7") == (200, {"total": 0, "by": "7"})
    assert ask(api, "GET", "/api/nothing")[0] == 404
