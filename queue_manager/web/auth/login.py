"""Logging in and out: `GET /login` is a page, `POST /login` gives a cookie for a key, `POST /logout` takes it away."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from queue_manager.web.auth import session
from queue_manager.web.auth.credentials import Credentials
from queue_manager.web.http.content_negotiation import LoginFirst, address_of, prefers_page
from queue_manager.web.http.errors import Refused, errors
from queue_manager.web.http.request_body import read
from queue_manager.web.http.responses import NO_STORE
from queue_manager.web.rendering import rendered

LARGEST_FORM = 4_096  # bytes
FIELDS = {"key": {"type": "string"}, "next": {"type": "string", "description": "a path of this process, to go on at"}}
FORM = {"type": "object", "required": ["key"], "properties": FIELDS}
BODY = {"requestBody": {"required": True, "content": {"application/x-www-form-urlencoded": {"schema": FORM}}}}
NO_KEYS: dict[int | str, dict[str, Any]] = {303: {"description": "Without keys: redirect to `next`"}}
_OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")

router = APIRouter()


@router.get("/login", response_class=HTMLResponse, responses=NO_KEYS)
async def page(request: Request, next: str = "/") -> Response:
    """Show the form. Without keys it redirects to `next`."""
    return _form(next) if _credentials(request).are_needed else _onwards(next)


@router.post(
    "/login",
    status_code=HTTPStatus.SEE_OTHER,
    response_class=RedirectResponse,
    openapi_extra=BODY,
    responses=errors(401, 429),
)
async def log_in(request: Request) -> Response:
    """Start a session for a key: 303 to `next`, with the cookie."""
    request.state.acts = True  # it is noted who logs in, and who tries
    form = parse_qs((await read(request, LARGEST_FORM, field="body")).decode("utf-8", "replace"))
    key, next = (form.get(name, [""])[0].strip() for name in ("key", "next"))
    if not _credentials(request).are_needed:
        return _onwards(next)
    try:
        credentials, address = _credentials(request), address_of(request.scope)
        request.state.who = who = await credentials.holder_or_slow_down(key, address=address)
    except Refused as error:
        if not prefers_page(request.headers):
            raise
        return _form(next, refusal=error)
    response = _onwards(next)
    session.give(response, who, is_https=_is_https(request))
    return response


@router.post("/logout", status_code=HTTPStatus.SEE_OTHER, response_class=RedirectResponse)
async def log_out(request: Request) -> Response:
    """End the session here and in every process, and take the cookie away."""
    await _credentials(request).log_out(request.headers)
    response = _onwards("/login")
    session.take_away(response, is_https=_is_https(request))
    return response


def install(api: FastAPI) -> None:
    """Let pages ask for a log-in."""

    @api.exception_handler(LoginFirst)
    async def log_in_first(request: Request, _: LoginFirst) -> Response:
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return _onwards(f"/login?next={quote(wanted, safe='')}")


def _credentials(request: Request) -> Credentials:
    credentials: Credentials = request.app.state.credentials
    return credentials


def _form(next: str, *, refusal: Refused | None = None) -> Response:
    status, problem = (refusal.status, refusal.message) if refusal is not None else (HTTPStatus.OK, "")
    response = rendered("login.html", status=status, next=_own(next), problem=problem)
    response.headers.update(refusal.headers or {} if refusal is not None else {})
    return response


def _onwards(next: str) -> RedirectResponse:
    return RedirectResponse(_own(next), status_code=HTTPStatus.SEE_OTHER, headers=NO_STORE)


def _own(next: str) -> str:
    """Return `next` if it is a path of this process: a link must not send people elsewhere after they log in."""
    return next if _OWN_PATH.fullmatch(next) else "/"


def _is_https(request: Request) -> bool:
    # As the browser sees it: uvicorn believes `X-Forwarded-Proto` of a proxy on this machine.
    return request.url.scheme == "https"
