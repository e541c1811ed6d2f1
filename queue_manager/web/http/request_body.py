"""Bodies of requests: bounded while they come in, read into pydantic models, described from the same models."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Generic, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from starlette.requests import ClientDisconnect

from queue_manager.web.http.errors import Refused, invalid, invalid_because

MAX_DISCARDED = 64 * 1024 * 1024  # bytes over the limit: a client that is cut off while it sends never reads the answer


class Members(BaseModel):
    """The members of a JSON object. Unknown ones are refused; one that is null counts as not given."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class NoMembers(Members):
    """An empty object."""


M = TypeVar("M", bound=Members)


class Body:
    """A body of JSON: what OpenAPI says of it. Subclasses are dependencies that read it.

    Args:
        model: the type that describes it.
        is_required: False if an empty body stands for `{}`.
    """

    def __init__(self, model: Any, *, is_required: bool = True) -> None:
        self.model, self.is_required = model, is_required

    def schema(self) -> dict[str, Any]:
        """Return its JSON schema; the models that it refers to are in `$defs`."""
        return TypeAdapter(self.model).json_schema(ref_template="#/components/schemas/{model}")


class JsonBody(Body, Generic[M]):
    """A dependency: the body of the request, of `max_bytes` at most, as a `model`. Raises `Refused`."""

    def __init__(self, model: type[M], *, max_bytes: int, is_required: bool = True) -> None:
        super().__init__(model, is_required=is_required)
        self._type, self._max_bytes = model, max_bytes

    async def __call__(self, request: Request) -> M:
        body = await read(request, self._max_bytes, field="body")
        return validated(self._type, _object(body) if self.is_required or body.strip() else {})


def validated(model: type[M], given: dict[str, Any]) -> M:
    """Return the members of a body as a `model`. Raises `Refused`, which names the first wrong one."""
    for name in given:
        if name not in model.model_fields:
            known = f"the fields are {', '.join(model.model_fields)}" if model.model_fields else "there are none"
            raise invalid(name, f"unknown field; {known}")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise invalid_because(error.errors()[0]) from None


async def read(request: Request, max_bytes: int, *, field: str) -> bytes:
    """Return the body. Raises `Refused`: it is longer than `max_bytes`, because of `field`."""
    body, size = bytearray(), 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= max_bytes:
                body += chunk
            elif size > max_bytes + MAX_DISCARDED:
                break
    except ClientDisconnect:
        raise malformed("it ended early") from None
    if size > max_bytes:
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        raise Refused(status, "too large", f"{field}: must have at most {max_bytes} bytes", field=field)
    return bytes(body)


def malformed(why: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, "bad request", f"body: must be JSON in UTF-8 ({why})", field="body")


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
    """A constant that Python reads and JSON does not have."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotANumber(f"{name} is not JSON")
