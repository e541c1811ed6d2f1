"""Query parameters: one that a route does not declare is refused, so that a misspelt filter never means "all"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import Request
from pydantic import BeforeValidator

from queue_manager.web.http.errors import invalid

EmptyIsNone = BeforeValidator(lambda value: None if value == "" else value)
"""For a parameter that may be empty: forms send the fields that nobody filled in."""


def refuse_unknown(request: Request) -> None:
    """Raise `Refused` for a parameter that the route of `request` does not declare.

    Routes outside the API description are pages: their scripts read the parameters in the browser.
    """
    if not request.query_params:
        return
    route: Any = request.scope["route"]
    if not route.include_in_schema:
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
