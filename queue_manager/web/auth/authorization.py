"""Authorization: the role that each route requires, who sends a request from which site, the access log of actions.

    router = APIRouter(prefix="/api", dependencies=[viewer])

A `viewer` reads, an `operator` acts; a `public` route needs no key. A key that is for some systems only is refused by
all routes but those of its systems (`viewer_of`, `operator_of`), and those that answer for its systems (`EACH`).
Guarantee: an application with a route that has no role, or two, does not start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.datastructures import Headers
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from queue_manager.core.log import get_logger
from queue_manager.web.auth.authentication import Principal, authenticator_of, sent_key
from queue_manager.web.http.errors import ApiError
from queue_manager.web.http.requests import SAFE_METHODS, is_page_view, refuse_unknown_parameters
from services.audit import Actor

IN_PATH = "{name}"
"""The system that the path of a route names."""
EACH = "*"
"""All systems of the key: the route answers for no other."""
PUBLIC_MOUNTS = {"/static"}  # the login page needs it
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
REPETITION_PERIOD = 1.0  # seconds
MAX_LOGGED_PATH = 1_024  # bytes

log = get_logger("QM/access")


class LoginRequired(Exception):
    """A person opens a page without a session."""


class RequiredRole:
    """A dependency of a route that lets a request pass, or raises `ApiError` or `LoginRequired`.

    Args:
        system: the name of the system that the route is about, `IN_PATH` or `EACH`; `None`: all systems.
    """

    def __init__(self, role: Literal["public", "viewer", "operator"], *, system: str | None = None) -> None:
        self.role, self.system = role, system

    async def __call__(self, request: Request) -> None:
        if self.role == "public":
            if request.method not in SAFE_METHODS and is_from_other_site(request.headers):
                raise _other_site()
            return  # unknown parameters may pass: monitors add their own to probes, and links to the login page
        state = request.state
        if self.role == "operator" and "is_head" in state:
            raise _no_head()  # HEAD must have no effect, and this GET receives a message
        state.is_action = self.role == "operator"
        state.principal = principal = await self._authenticate(request)
        if not principal.has_role(self.role):
            message = f"The key {principal.name} is a {principal.role}'s; this needs an {self.role}'s"
            raise ApiError(HTTPStatus.FORBIDDEN, "forbidden", message)
        if self.system != EACH:
            require_system(principal, request.path_params.get("name") if self.system == IN_PATH else self.system)
        if not self._accepts_site(principal, request.headers):
            raise _other_site()
        refuse_unknown_parameters(request)

    async def _authenticate(self, request: Request) -> Principal:
        try:
            return await authenticator_of(request).authenticate(request)
        except ApiError:
            if is_page_view(request) and sent_key(request.headers) is None:
                raise LoginRequired from None
            raise

    def _accepts_site(self, principal: Principal, headers: Headers) -> bool:
        if principal.by == "key":  # no browser adds a key by itself
            return True
        if self.role == "operator" and principal.by == "session":
            # Pages act with `fetch`; a link that was followed by way of the log-in page counts as one of our own pages.
            return is_from_own_page(headers) and not _is_navigation(headers)
        return not is_from_other_site(headers) or (self.role == "viewer" and _is_followed_link(headers))


public = Depends(RequiredRole("public"))
viewer = Depends(RequiredRole("viewer"))
operator = Depends(RequiredRole("operator"))


def viewer_of(system: str) -> Any:
    return Depends(RequiredRole("viewer", system=system))


def operator_of(system: str) -> Any:
    return Depends(RequiredRole("operator", system=system))


def require_system(principal: Principal, name: str | None) -> None:
    """Raise `ApiError` unless the key is for this system; with `None`, for all."""
    if not principal.has_system(name):
        message = f"The key {principal.name} is only for: {', '.join(principal.systems or ())}"
        raise ApiError(HTTPStatus.FORBIDDEN, "forbidden", message)


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


CurrentPrincipal = Annotated[Principal, Depends(_principal)]
"""The principal that sends the request; for routes that require `viewer` or `operator`."""


def _actor(request: Request, principal: CurrentPrincipal) -> Actor:
    is_page = principal.by != "key" and is_from_own_page(request.headers)
    address = request.client.host if request.client else "unknown"
    return Actor(who=principal.name, via="page" if is_page else "api", address=address)


CurrentActor = Annotated[Actor, Depends(_actor)]
"""Who sends the request, and from which address, for the audit."""


def required_roles(api: FastAPI) -> Iterator[tuple[RouteContext, RequiredRole]]:
    """Yield every route with its required role. Raises `LookupError` if a route has none, or two."""
    for route in iter_route_contexts(api.routes):
        if isinstance(route.original_route, Mount) and route.path in PUBLIC_MOUNTS:
            yield route, RequiredRole("public")
            continue
        dependant: Any = getattr(route, "dependant", None)
        dependencies = dependant.dependencies if dependant is not None else []
        found = [one.call for one in dependencies if isinstance(one.call, RequiredRole)]
        if len(found) != 1:
            raise LookupError(f"{route.path}: give its router one of public, viewer, operator as a dependency")
        yield route, found[0]


def _no_head() -> ApiError:
    status = HTTPStatus.METHOD_NOT_ALLOWED
    return ApiError(status, status.phrase.lower(), "HEAD must have no effect, and GET has one here")


def _other_site() -> ApiError:
    return ApiError(HTTPStatus.FORBIDDEN, "forbidden", "Pages of another site and links may not do this")


# The site of the page that sent a request. Current browsers send `Sec-Fetch-Site`, except over plain HTTP from another
# machine; they send `Origin` with everything but simple reads. Programs send neither.


def is_from_other_site(headers: Headers) -> bool:
    """Return True if a page of another site sent the request."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    return "origin" in headers and not _has_own_origin(headers)


def is_from_own_page(headers: Headers) -> bool:
    """Return True if a browser states that one of our own pages sent the request."""
    site = headers.get("sec-fetch-site")
    return site == "same-origin" if site is not None else _has_own_origin(headers)


def _is_navigation(headers: Headers) -> bool:
    return headers.get("sec-fetch-mode") == "navigate"


def _is_followed_link(headers: Headers) -> bool:
    """Return True if a person follows a link: they see the response, the page with the link does not."""
    return _is_navigation(headers) and headers.get("sec-fetch-dest") == "document"


def _has_own_origin(headers: Headers) -> bool:
    try:
        origin = urlsplit(headers.get("origin", ""))
        port = DEFAULT_PORTS.get(origin.scheme, "")  # browsers omit it, some proxies add it to `Host`
        return origin.netloc.removesuffix(port) == headers["host"].removesuffix(port) != ""
    except (KeyError, ValueError):
        return False


# The access log


class AccessLogMiddleware:
    """ASGI middleware that logs each action with its principal and status.

    Actions that differ in nothing share a line for a second: the first is logged at once, and at the end the number of
    `repetitions`. Reads `is_action` and `principal` from the request's state.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._repetitions: dict[tuple[str, str, str, int], int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            if scope["type"] == "lifespan":
                self._log_repetitions()
            return
        scope.setdefault("state", {})  # shared with the request

        async def send_and_log(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["state"].get("is_action"):
                self._log_action(scope, message["status"])
            await send(message)

        await self._app(scope, receive, send_and_log)

    def _log_action(self, scope: Scope, status: int) -> None:
        if scope["method"] == "GET" and status == HTTPStatus.NOT_FOUND:  # a receive that found no message
            return
        name = getattr(scope["state"].get("principal"), "name", "nobody")
        raw_path: bytes = scope.get("raw_path", b"")
        path = raw_path[:MAX_LOGGED_PATH].decode("ascii", "replace")  # undecoded, to prevent log injection
        action = (name, scope["method"], path, int(status))
        if action in self._repetitions:
            self._repetitions[action] += 1
            return
        if not self._repetitions:
            asyncio.get_running_loop().call_later(REPETITION_PERIOD, self._log_repetitions)
        self._repetitions[action] = 0
        _log(action)

    def _log_repetitions(self) -> None:
        actions, self._repetitions = self._repetitions, {}
        for action, repetitions in actions.items():
            if repetitions:
                _log(action, repetitions=repetitions)


def _log(action: tuple[str, str, str, int], **fields: int) -> None:
    who, method, path, status = action
    log.info("Change requested", who=who, method=method, path=path, status=status, **fields)
