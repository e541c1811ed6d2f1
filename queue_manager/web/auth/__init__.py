"""Who may use the web process: keys for programs, a session for people, one rule for each route.

Guarantee: without keys it serves this machine alone, which may do everything; with keys every route that is not
`public` needs one, also while a client stays connected. Every action is logged with its principal.
"""

from __future__ import annotations

from fastapi import FastAPI

from queue_manager.web.auth import login
from queue_manager.web.auth.audit_log import Journal
from queue_manager.web.auth.authorization import Current, operator, public, rules, viewer
from queue_manager.web.auth.credentials import Credentials
from queue_manager.web.auth.principal import Who

__all__ = ["Credentials", "Current", "Journal", "Who", "install", "operator", "public", "rules", "viewer"]


def install(api: FastAPI, credentials: Credentials) -> None:
    """Let the routes of `api` ask who somebody is, and people log in."""
    api.state.credentials = credentials
    login.install(api)
    api.include_router(login.router, dependencies=[public], tags=["login"])
