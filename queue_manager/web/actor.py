"""Who sends a request, for the audit."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from queue_manager.web.auth import CurrentPrincipal
from queue_manager.web.auth.authorization import is_from_own_page
from services.audit import Actor


def _actor(request: Request, principal: CurrentPrincipal) -> Actor:
    is_page = principal.by == "session" or is_from_own_page(request.headers)
    address = request.client.host if request.client else "unknown"
    return Actor(who=principal.name, via="page" if is_page else "api", address=address)


CurrentActor = Annotated[Actor, Depends(_actor)]
"""Who sends the request, and from which address."""
