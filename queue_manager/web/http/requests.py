"""Requests: page views, the time limit, query parameters, and bodies.

Bodies are bounded and validated with pydantic models.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Generic

from fastapi import Depends, Query, Request
from pydantic import TypeAdapter
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from queue_manager.core.errors import InvalidField, MalformedBody
from queue_manager.core.json_types import NotFinite, finite
from queue_manager.operations.cursors import MAX_CURSOR_LENGTH
from queue_manager.operations.schemas import MAX_FIELD_LENGTH, M, NoMembers, validated
from queue_manager.web.http.errors import ApiError

SAFE_METHODS = {"GET", "HEAD"}
MAX_SMALL_BODY = 4 * 1024  # bytes of a body with few short members
MAX_DISCARDED_BYTES = 64 * 1024 * 1024
"""Bytes over the limit of a body that are still read: a client that is cut off while it sends never reads the error."""
MAX_DURATION = 50.0
"""Seconds of a request that changes much: proxies time out after 60. The next request changes what is left then."""

Cursor = Annotated[
    str | None, Query(max_length=MAX_CURSOR_LENGTH, description="The `cursor` of an earlier page of the same list.")
]


def prefers_page(headers: Headers) -> bool:
    """Return True if the response is for a person, in a browser."""
    return "text/html" in headers.get("accept", "")


def is_page_view(request: Request) -> bool:
    """Return True if a browser opens a page."""
    return request.method in SAFE_METHODS and prefers_page(request.headers)


def time_check(request: Request) -> Callable[[], bool]:
    """Return a function that returns True after 50 s, or when the process shuts down."""
    ending: asyncio.Event = request.app.state.ending
    ends = time.monotonic() + MAX_DURATION
    return lambda: time.monotonic() >= ends or ending.is_set()


# Query parameters


def refuse_unknown_parameters(request: Request) -> None:
    """Raise `InvalidField` for a parameter that the route does not declare: a misspelt filter must not mean "all".

    Routes outside the API description are pages: their scripts read the parameters in the browser.
    """
    route: Any = request.scope["route"]
    if not request.scope["query_string"] or not route.include_in_schema:
        return
    known = list(dict.fromkeys(_declared(route.dependant)))
    for name in request.query_params:
        if name not in known:
            accepted = f"the known ones are {', '.join(known)}" if known else "this route has none"
            raise InvalidField(name[:MAX_FIELD_LENGTH], f"unknown query parameter; {accepted}")


def _declared(dependant: Any) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _declared(dependency)


# Bodies


class Body:
    """A body as OpenAPI describes it. Subclasses are dependencies that read it.

    Args:
        model: the type that describes it.
        is_required: False if an empty body stands for `{}`.
    """

    media_type = "application/json"
    other_contents: ClassVar[Mapping[str, Any]] = {}
    """Other media types of the body, with their descriptions."""

    def __init__(self, model: Any, *, is_required: bool = True) -> None:
        self.model, self.is_required = model, is_required

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema; the models that it refers to are in `$defs`."""
        return TypeAdapter(self.model).json_schema(ref_template="#/components/schemas/{model}")


class JsonBody(Body, Generic[M]):
    """A dependency that returns the body as a `model`. Raises `InvalidField`, and `ApiError` above `max_bytes`."""

    def __init__(self, model: type[M], *, max_bytes: int = MAX_SMALL_BODY, is_required: bool = True) -> None:
        super().__init__(model, is_required=is_required)
        self._type, self._max_bytes = model, max_bytes

    async def __call__(self, request: Request) -> M:
        body = await read_body(request, self._max_bytes, field="body")
        return validated(self._type, _object(body) if self.is_required or body.strip() else {})


NoBody = Annotated[NoMembers, Depends(JsonBody(NoMembers, is_required=False))]
"""A body that is empty or `{}`."""


async def read_body(request: Request, max_bytes: int, *, field: str) -> bytes:
    """Return the body. Raises `ApiError` about `field` if it is longer than `max_bytes`."""
    body, size = bytearray(), 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= max_bytes:
                body += chunk
            elif size > max_bytes + MAX_DISCARDED_BYTES:
                break
    except ClientDisconnect:
        raise MalformedBody("it ended early") from None
    if size > max_bytes:
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        raise ApiError(status, "too large", f"{field}: must have at most {max_bytes} bytes", field=field)
    return bytes(body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body.decode(), parse_constant=finite, parse_float=finite)
    except RecursionError:
        raise MalformedBody("it is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError, NotFinite) as error:
        raise MalformedBody(f"{error!s:.200}") from None
    except ValueError:  # Python refuses to read an integer of thousands of digits
        raise MalformedBody("a number has too many digits") from None
    if not isinstance(given, dict):
        raise MalformedBody("it is not an object")
    return given
