"""Reading requests: page views, query parameters, and bodies, which are bounded and validated with pydantic models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Generic, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from queue_manager.core.clock import parse_utc
from queue_manager.core.errors import PermanentError
from queue_manager.core.pause import MAX_REASON_LENGTH
from queue_manager.web.http.errors import ApiError, invalid, invalid_because

SAFE_METHODS = {"GET", "HEAD"}
MAX_DISCARDED_BYTES = 64 * 1024 * 1024
"""Bytes over the limit of a body that are still read: a client that is cut off while it sends never reads the error."""

EmptyIsNone = BeforeValidator(lambda value: None if value == "" else value)
"""For a query parameter that may be empty: forms also send the fields that were not filled in."""


def prefers_page(headers: Headers) -> bool:
    """Return True if the response is for a person, in a browser."""
    return "text/html" in headers.get("accept", "")


def is_page_view(request: Request) -> bool:
    """Return True if a browser opens a page."""
    return request.method in SAFE_METHODS and prefers_page(request.headers)


def _moment(value: Any) -> datetime | None:
    try:
        return parse_utc(value, field="")
    except PermanentError:
        raise ValueError("must be an ISO 8601 time with a zone, such as 2026-01-31T09:30:00Z") from None


At = Annotated[datetime | None, BeforeValidator(_moment)]
"""A time in a body."""


# Query parameters


def refuse_unknown_parameters(request: Request) -> None:
    """Raise `ApiError` for a parameter that the route does not declare, so that a misspelt filter never means "all".

    Routes outside the API description are pages: their scripts read the parameters in the browser.
    """
    route: Any = request.scope["route"]
    if not request.scope["query_string"] or not route.include_in_schema:
        return
    known = list(dict.fromkeys(_declared(route.dependant)))
    for name in request.query_params:
        if name not in known:
            accepted = f"the known ones are {', '.join(known)}" if known else "this route has none"
            raise invalid(name, f"unknown query parameter; {accepted}")


def _declared(dependant: Any) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _declared(dependency)


# Bodies


class Members(BaseModel):
    """The members of a JSON object. Unknown ones are refused; null counts as not given."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class NoMembers(Members):
    """An empty object."""


PAUSE_REASON: Any = Field(
    default=None, min_length=1, max_length=MAX_REASON_LENGTH, description="Why, for the people who see it."
)


M = TypeVar("M", bound=Members)


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
    """A dependency that returns the body, of at most `max_bytes`, as a `model`. Raises `ApiError`."""

    def __init__(self, model: type[M], *, max_bytes: int, is_required: bool = True) -> None:
        super().__init__(model, is_required=is_required)
        self._type, self._max_bytes = model, max_bytes

    async def __call__(self, request: Request) -> M:
        body = await read_body(request, self._max_bytes, field="body")
        return validated(self._type, _object(body) if self.is_required or body.strip() else {})


def validated(model: type[M], given: dict[str, Any]) -> M:
    """Return the members of a body as a `model`. Raises `ApiError` about the first invalid one."""
    for name in given:
        if name not in model.model_fields:
            known = f"the fields are {', '.join(model.model_fields)}" if model.model_fields else "there are none"
            raise invalid(name, f"unknown field; {known}")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise invalid_because(error.errors()[0]) from None


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
        raise malformed("it ended early") from None
    if size > max_bytes:
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        raise ApiError(status, "too large", f"{field}: must have at most {max_bytes} bytes", field=field)
    return bytes(body)


def malformed(why: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, "bad request", f"body: must be JSON in UTF-8 ({why})", field="body")


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body.decode(), parse_constant=_refuse_constant)
    except RecursionError:
        raise malformed("it is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError, _NotANumber) as error:
        raise malformed(f"{error!s:.200}") from None
    except ValueError:  # Python refuses to read an integer of thousands of digits
        raise malformed("a number has too many digits") from None
    if not isinstance(given, dict):
        raise malformed("it is not an object")
    return given


class _NotANumber(ValueError):
    """A constant such as NaN, which Python reads and JSON does not have."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotANumber(f"{name} is not JSON")
