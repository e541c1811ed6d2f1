"""Log-in and log-out: `GET /login` is a page, `POST /login` sets a cookie for a key, `POST /logout` deletes it."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from queue_manager.core.settings import settings
from queue_manager.web.auth.authentication import authenticator_of, delete_session_cookie, set_session_cookie
from queue_manager.web.auth.authorization import LoginRequired, public
from queue_manager.web.html_pages import render
from queue_manager.web.http.errors import ApiError, errors
from queue_manager.web.http.requests import prefers_page, read_body

MAX_FORM_BYTES = 4_096
LOGIN_FORM_SCHEMA = {
    "type": "object",
    "required": ["key"],
    "properties": {
        "key": {"type": "string"},
        "next": {"type": "string", "description": "a path of this process, without QM_WEB_PREFIX, to go on at"},
    },
}
LOGIN_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/x-www-form-urlencoded": {"schema": LOGIN_FORM_SCHEMA}},
    }
}
REDIRECT: dict[int | str, dict[str, Any]] = {303: {"description": "Without keys: redirect to `next`"}}
PATH_CHARACTERS = "/:@!$&'()*+,;="  # that are not escaped in a path, in addition to those that `quote` never escapes
_OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")

router = APIRouter()


@router.get("/login", response_class=HTMLResponse, responses=REDIRECT)
async def page(request: Request, next_path: Annotated[str, Query(alias="next")] = "/") -> Response:
    """Show the form. Without keys it redirects to `next`."""
    return _form(next_path) if authenticator_of(request).is_required else _redirect(next_path)


@router.post(
    "/login",
    status_code=HTTPStatus.SEE_OTHER,
    response_class=RedirectResponse,
    openapi_extra=LOGIN_BODY,
    responses=errors(401, 429),
)
async def log_in(request: Request) -> Response:
    """Start a session for a key: 303 to `next`, with the cookie."""
    request.state.is_action = True  # log-ins and failed ones are in the access log
    form = parse_qs((await read_body(request, MAX_FORM_BYTES, field="body")).decode("utf-8", "replace"))
    key, next_path = (form.get(name, [""])[0].strip() for name in ("key", "next"))
    authenticator = authenticator_of(request)
    if not authenticator.is_required:
        return _redirect(next_path)
    try:
        request.state.principal = principal = await authenticator.authenticate_key(key, request)
    except ApiError as error:
        if not prefers_page(request.headers):
            raise
        return _form(next_path, error)
    response = _redirect(next_path)
    set_session_cookie(response, principal, is_https=_is_https(request))
    return response


@router.post("/logout", status_code=HTTPStatus.SEE_OTHER, response_class=RedirectResponse)
async def log_out(request: Request) -> Response:
    """End the session in every process, and delete the cookie."""
    await authenticator_of(request).log_out(request.headers)
    response = _redirect("/login")
    delete_session_cookie(response, is_https=_is_https(request))
    return response


def install(api: FastAPI) -> None:
    """Add the login page, to which people who open a page without a session are redirected."""
    api.include_router(router, dependencies=[public], tags=["login"])

    @api.exception_handler(LoginRequired)
    async def redirect_to_login(request: Request, _: LoginRequired) -> Response:
        path = quote(request.scope["path"], safe=PATH_CHARACTERS)  # which is decoded
        page = path + (f"?{request.url.query}" if request.url.query else "")
        return _redirect(f"/login?next={quote(page, safe='')}")


def _form(next_path: str, error: ApiError | None = None) -> Response:
    status, problem, headers = (error.status, error.message, error.headers) if error else (HTTPStatus.OK, "", None)
    response = render("login.html", status=status, next=_own(next_path), problem=problem)
    response.headers.update(headers or {})
    return response


def _redirect(path: str) -> RedirectResponse:
    return RedirectResponse(settings().web_prefix + _own(path), status_code=HTTPStatus.SEE_OTHER)


def _own(path: str) -> str:
    """Return `path` if it is one of this process, else `/`: a log-in must not redirect to another site."""
    return path if _OWN_PATH.fullmatch(path) else "/"


def _is_https(request: Request) -> bool:
    # The browser's scheme: uvicorn trusts `X-Forwarded-Proto` of a proxy on this machine.
    return request.url.scheme == "https"
