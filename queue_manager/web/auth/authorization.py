"""The rule of a route: `viewer` reads, `operator` acts, `public` asks nothing. Declared where a route is included:

    api.include_router(listing.router, prefix="/api", dependencies=[viewer])

Guarantee: an application with a route that has no rule, or two, does not start.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Request
from fastapi.routing import RouteContext, iter_route_contexts
from starlette.datastructures import Headers
from starlette.routing import Mount

from queue_manager.web.auth.credentials import Credentials, shown_key
from queue_manager.web.auth.origin import is_from_elsewhere, is_from_own_page, is_link_followed
from queue_manager.web.auth.principal import Who
from queue_manager.web.http.content_negotiation import SAFE, LoginFirst, address_of, is_page_view
from queue_manager.web.http.errors import Refused
from queue_manager.web.http.query_parameters import refuse_unknown

PUBLIC_MOUNTS = {"/static"}  # what the login page needs


class Rule:
    """A dependency of a route that lets a request pass, or raises `Refused`."""

    def __init__(self, role: Literal["public", "viewer", "operator"]) -> None:
        self.role = role

    async def __call__(self, request: Request) -> None:
        await self._admit(request)
        if self.role != "public":  # monitors add parameters of their own to probes, and links to the login page do
            refuse_unknown(request)

    async def _admit(self, request: Request) -> None:
        headers, state = request.headers, request.state
        if self.role == "operator" and getattr(state, "is_head", False):
            raise _no_head()  # HEAD must have no effect, and this GET takes a message
        state.acts = self.role == "operator"
        if self.role == "public":
            if request.method not in SAFE and is_from_elsewhere(headers):
                raise _other_site()
            return
        credentials: Credentials = request.app.state.credentials
        try:
            state.who = who = await credentials.who(headers, address=address_of(request.scope))
        except Refused:
            if is_page_view(request) and shown_key(headers) is None:
                raise LoginFirst from None
            raise
        if not who.may(self.role):
            message = f"The key {who.name} is a {who.role}'s; this needs an {self.role}'s"
            raise Refused(HTTPStatus.FORBIDDEN, "forbidden", message)
        if not self._may_come_from(who, headers):
            raise _other_site()

    def _may_come_from(self, who: Who, headers: Headers) -> bool:
        if who.by == "key":  # which no browser adds by itself
            return True
        if self.role == "operator" and who.by == "session":
            return is_from_own_page(headers)
        return not is_from_elsewhere(headers) or (self.role == "viewer" and is_link_followed(headers))


public = Depends(Rule("public"))
viewer = Depends(Rule("viewer"))
operator = Depends(Rule("operator"))


def _who(request: Request) -> Who:
    who: Who = request.state.who
    return who


Current = Annotated[Who, Depends(_who)]
"""Who sends this request; for routes whose rule is `viewer` or `operator`."""


def rules(api: FastAPI) -> Iterator[tuple[RouteContext, Rule]]:
    """Give every route with its rule. Raises `LookupError`: one has none, or two."""
    for route in iter_route_contexts(api.routes):
        if isinstance(route.original_route, Mount) and route.path in PUBLIC_MOUNTS:
            yield route, Rule("public")
            continue
        found = [rule for rule in map(_rule, _dependencies(route)) if rule is not None]
        if len(found) != 1:
            raise LookupError(f"{route.path}: give its router one of public, viewer, operator as a dependency")
        yield route, found[0]


def _dependencies(route: RouteContext) -> list[Any]:
    dependant = getattr(route, "dependant", None)
    return dependant.dependencies if dependant is not None else []


def _rule(dependency: Any) -> Rule | None:
    return dependency.call if isinstance(dependency.call, Rule) else None


def _no_head() -> Refused:
    status = HTTPStatus.METHOD_NOT_ALLOWED
    return Refused(status, status.phrase.lower(), "HEAD must have no effect, and GET has one here")


def _other_site() -> Refused:
    return Refused(HTTPStatus.FORBIDDEN, "forbidden", "Pages of another site may not do this")
