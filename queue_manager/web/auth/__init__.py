"""Access to the web process: API keys for programs, sessions for people, one required role per route.

Guarantee: without keys only this machine is served, and may do everything. With keys every route that is not `public`
needs one, also while a client stays connected. Every action is logged with its principal.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth import login
from queue_manager.web.auth.authentication import Authenticator
from queue_manager.web.auth.authorization import (
    EACH,
    IN_PATH,
    AccessLogMiddleware,
    CurrentActor,
    CurrentPrincipal,
    operator,
    operator_of,
    public,
    require_system,
    required_roles,
    viewer,
    viewer_of,
)
from queue_manager.web.auth.principal import Principal

__all__ = [
    "EACH",
    "IN_PATH",
    "AccessLogMiddleware",
    "Authenticator",
    "CurrentActor",
    "CurrentPrincipal",
    "Principal",
    "install",
    "operator",
    "operator_of",
    "public",
    "require_system",
    "required_roles",
    "viewer",
    "viewer_of",
]


def install(api: FastAPI, authenticator: Authenticator) -> None:
    """Add authentication to `api`, and the login page."""
    api.state.authenticator = authenticator
    login.install(api)
    api.include_router(login.router, dependencies=[public], tags=["login"])
