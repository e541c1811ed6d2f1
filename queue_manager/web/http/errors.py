"""Every error of the API has one form: `{"error": a word or two, "message": a sentence, "field"?: its name}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from itertools import takewhile
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from queue_manager.web.http.schemas import optional

REASONS = {
    HTTPStatus.BAD_REQUEST: "The body is not JSON, or something is missing",
    HTTPStatus.UNAUTHORIZED: "No key, or an unknown or expired one",
    HTTPStatus.FORBIDDEN: "The key's role does not allow it, or a page of another site sent the request",
    HTTPStatus.NOT_FOUND: "Not found",
    HTTPStatus.CONFLICT: "The current state does not allow it",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large",
    HTTPStatus.UNPROCESSABLE_ENTITY: "A field is invalid; `field` names it",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many wrong keys from this address; see `Retry-After`",
    HTTPStatus.SERVICE_UNAVAILABLE: "A server does not answer",
}
MAX_FIELD_LENGTH = 64  # characters of a name that is quoted


class Error(BaseModel):
    """An error."""

    error: str = Field(description="The kind of error, in a word or two.")
    message: str = Field(description="A sentence for people.")
    field: str | None = optional("The parameter or member of the body that the error is about.")


class Refused(Exception):
    """The request is refused with a status, a reason, and the name of the field that caused it."""

    def __init__(
        self,
        status: HTTPStatus,
        error: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.error, self.message, self.field, self.headers = status, error, message, field, headers


def invalid(field: str, problem: str) -> Refused:
    """Return the error for a field that is not as it must be."""
    field = field[:MAX_FIELD_LENGTH]
    return Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", f"{field}: {problem}", field=field)


def invalid_because(error: Mapping[str, Any]) -> Refused:
    """Return the error for an error of pydantic."""
    field = ".".join(takewhile(lambda part: isinstance(part, str), error["loc"]))
    match error["type"]:
        case "missing":
            return invalid(field, "is missing")
        case "value_error":
            return invalid(field, str(error["ctx"]["error"]))
    sentence = re.sub(r"^\w+ should ", "must ", error["msg"])
    return invalid(field, re.sub(r" after validation.*|, unable to .*", "", sentence))


def answer(
    status: HTTPStatus,
    error: str,
    message: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return an error response. The message may quote any text of a client, also unpaired surrogates."""
    members = {"error": error, "message": message} | ({"field": field} if field is not None else {})
    # JSON can name an unpaired surrogate, which UTF-8 cannot encode.
    encodable = {name: text.encode("utf-8", "replace").decode() for name, text in members.items()}
    return JSONResponse(encodable, status_code=status, headers=dict(headers or {}))


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route: `responses=errors(404, 409)`. Those of keys, bodies and fields are added."""
    return {status: {"model": Error, "description": REASONS[HTTPStatus(status)]} for status in statuses}
