"""The ASGI application of the `web` process, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import socketio
from fastapi import FastAPI
from starlette.types import ASGIApp

from models import database
from queue_manager.core.settings import Settings
from queue_manager.dashboard import errors, jobs, metrics, pages, probes, triggers
from queue_manager.dashboard.boundary import Boundary
from queue_manager.dashboard.live import Live


def create(chosen: Settings) -> ASGIApp:
    """Return the application. It connects to nothing until it is started."""
    live = Live(chosen)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await live.start()
        yield
        await live.stop()
        database.close()

    api = FastAPI(title="Queue Manager", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    errors.install(api)
    api.include_router(probes.router)
    api.include_router(metrics.router)
    if chosen.qm_hooks:
        api.include_router(triggers.router)
    if chosen.runs_jobs:
        jobs.install(api)
    pages.install(api, needs_token=chosen.socketio_token_secret is not None)
    # Jobs ask for no credentials, so that they are for this machine alone, whatever Socket.IO asks for.
    local_only = chosen.socketio_token_secret is None or chosen.runs_jobs
    return Boundary(socketio.ASGIApp(live.server, other_asgi_app=api), local_only=local_only)
