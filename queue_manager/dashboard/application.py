"""The ASGI application of the `web` process, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import socketio
from fastapi import FastAPI
from starlette.types import ASGIApp

from models import database
from queue_manager.core.settings import Settings
from queue_manager.dashboard import errors, jobs, metrics, pages, probes, queue, triggers
from queue_manager.dashboard.boundary import Boundary
from queue_manager.dashboard.live import Live


def create(chosen: Settings, ending: asyncio.Event) -> ASGIApp:
    """Return the application. It connects to nothing until it is started.

    `ending` is set when the process is told to end: whoever waits for long is answered then.
    """
    live = Live(chosen)
    beside = queue.Beside(ending) if chosen.qm_message_queue else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(database.close)
            await live.start()
            stack.push_async_callback(live.stop)
            if beside is not None:
                await stack.enter_async_context(beside)
            yield

    api = FastAPI(title="Queue Manager", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    errors.install(api)
    api.include_router(probes.router)
    api.include_router(metrics.router)
    if chosen.qm_hooks:
        api.include_router(triggers.router)
    if beside is not None:
        queue.install(api, beside)
    if chosen.runs_jobs:
        jobs.install(api)
    pages.install(api, needs_token=chosen.socketio_token_secret is not None)
    # What asks for no credentials is for this machine alone, whatever Socket.IO asks for.
    local_only = chosen.socketio_token_secret is None or chosen.acts_for_anybody
    return Boundary(socketio.ASGIApp(live.server, other_asgi_app=api), local_only=local_only)
