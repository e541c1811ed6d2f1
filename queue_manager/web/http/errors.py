"""Every error of the API has one form: `{"error": what, in a word or two, "message": a sentence, "field"?: whose}`."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fastapi.responses import JSONResponse


class Refused(Exception):
    """The request cannot be answered: with which status, why, and because of which field."""

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


def answer(
    status: HTTPStatus,
    error: str,
    message: str,
    *,
    field: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return an error in the one form. What a client sent may be quoted in it, whatever its characters."""
    said = {"error": error, "message": message} | ({"field": field} if field is not None else {})
    # Half of a surrogate pair, which JSON can name and UTF-8 cannot.
    readable = {name: text.encode("utf-8", "replace").decode() for name, text in said.items()}
    return JSONResponse(readable, status_code=status, headers=dict(headers or {}))
