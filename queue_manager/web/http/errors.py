"""Errors of the API, all in one form: `{"error": a word or two, "message": a sentence, "field"?: its name}`."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from queue_manager.core.json_types import optional

STATUS_DESCRIPTIONS = {
    HTTPStatus.BAD_REQUEST: "The body is not valid JSON, or a required value is missing",
    HTTPStatus.UNAUTHORIZED: "No key, or an unknown or expired one",
    HTTPStatus.FORBIDDEN: "The key's role does not allow it, or a page of another site sent the request",
    HTTPStatus.NOT_FOUND: "Not found",
    HTTPStatus.CONFLICT: "The current state does not allow it",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large",
    HTTPStatus.UNPROCESSABLE_ENTITY: "A field is invalid; `field` names it",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many wrong keys from this address; see `Retry-After`",
    HTTPStatus.SERVICE_UNAVAILABLE: "A server does not answer",
}


class Error(BaseModel):
    """An error."""

    error: str = Field(description="The kind of error, in a word or two.")
    message: str = Field(description="A human-readable message.")
    field: str | None = optional("The parameter or member of the body that the error is about.")


class ApiError(Exception):
    """Ends a request with an HTTP status, a message, and the name of the field that is wrong, if any."""

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

    def response(self) -> JSONResponse:
        """Return the error as JSON. The message may quote any text of a client, even with unpaired surrogates."""
        members = {"error": self.error, "message": self.message} | (
            {"field": self.field} if self.field is not None else {}
        )
        # JSON can name an unpaired surrogate, which UTF-8 cannot encode.
        encodable = {name: text.encode("utf-8", "replace").decode() for name, text in members.items()}
        return JSONResponse(encodable, status_code=self.status, headers=dict(self.headers or {}))


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route: `responses=errors(404, 409)`. Those of keys and fields are added."""
    return {status: {"model": Error, "description": STATUS_DESCRIPTIONS[HTTPStatus(status)]} for status in statuses}
