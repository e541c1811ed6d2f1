"""The ASGI application of the `web` process, assembled from its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.types import ASGIApp

from models import database
from queue_manager.alerts import alerting
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import Settings
from queue_manager.web.auth import login
from queue_manager.web.auth.authentication import Authenticator
from queue_manager.web.auth.authorization import AccessLogMiddleware, required_roles
from queue_manager.web.http import exception_handlers
from queue_manager.web.http.middleware import (
    DirectRoutes,
    HeadMiddleware,
    PrefixMiddleware,
    SecurityMiddleware,
    ShutdownMiddleware,
)
from queue_manager.web.live.event_feed import Feed
from queue_manager.web.live.socketio_server import Live
from queue_manager.web.routes import (
    audit,
    docs,
    failures,
    jobs,
    messages,
    metrics,
    pages,
    probes,
    search,
    triggers,
)
from queue_manager.web.routes.systems import endpoints, events
from queue_manager.web.routes.systems.events import OverviewStates
from tasks.systems import require_tasks

MIN_COMPRESSED = 1_000  # bytes
COMPRESSION_LEVEL = 4  # 16 kB of JSON: 120 us for a tenth of the size; higher levels take longer and gain a hundredth
UNCOMPRESSED = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/x-ndjson")  # of a stream, each part arrives at once

ROUTERS = (
    *(events.router, endpoints.queries, endpoints.queries_of_all, endpoints.queries_of_each),
    *(endpoints.commands, endpoints.commands_of_all, docs.router, probes.router, metrics.router, search.router),
    *(audit.queries, audit.commands, failures.queries, failures.commands),
)


def create(chosen: Settings, ending: asyncio.Event) -> ASGIApp:
    """Return the application. It connects to nothing until it is started.

    `ending` is set when the process shuts down; long polls are answered then, and deletions stop.

    Raises:
        ConfigurationError: the keys, a system, a module of `JOBS_IMPORTS`, or the prefix are wrong.
    """
    require_tasks()
    api = api_of(chosen, ending)
    require_other_paths(chosen.web_prefix, api)
    application = api.state.live.application(HeadMiddleware(api))
    logged = AccessLogMiddleware(DirectRoutes(application, api=api))
    secured = SecurityMiddleware(ShutdownMiddleware(logged), local_only=not chosen.has_credentials)
    return PrefixMiddleware(secured, chosen.qm_web_prefix) if chosen.qm_web_prefix else secured


def require_other_paths(prefix: str, api: FastAPI) -> None:
    """Raise ConfigurationError if a path of ours begins with the prefix: after a proxy, it would be removed again."""
    if not prefix:
        return
    for path in ("/socket.io", *(str(route.path) for route, _ in required_roles(api))):
        pairs = zip(path.split("/"), prefix.split("/"), strict=False)
        if all(own == part or own.startswith("{") for own, part in pairs):
            raise ConfigurationError(
                f"QM_WEB_PREFIX={prefix!r}: must not begin like a path of the web process, such as {path}; use "
                "/queue-manager, for example"
            )


def api_of(chosen: Settings, ending: asyncio.Event) -> FastAPI:
    """Return the HTTP application. Raises like `create`; `LookupError`: a route has no role."""
    authenticator = Authenticator(chosen)
    live = Live(chosen, authenticator)
    message_feed = Feed(messages.MessageEvents(), ending) if chosen.qm_message_queue else None
    job_feed = Feed(jobs.JobEvents(), ending) if chosen.runs_jobs else None
    overview = Feed(OverviewStates(), ending)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(database.close)
            await stack.enter_async_context(authenticator.refreshing())
            await live.start()
            stack.push_async_callback(live.stop)
            if message_feed is not None:
                await stack.enter_async_context(message_feed)
                await stack.enter_async_context(messages.OverdueSweeper(message_feed))
            if job_feed is not None:
                await stack.enter_async_context(job_feed)
            await stack.enter_async_context(overview)
            await stack.enter_async_context(alerting(chosen))
            yield

    api = FastAPI(
        title="Queue Manager",
        version=version("queue-manager"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # it would redirect to the host that the client names, with our scheme and no prefix
        servers=[{"url": chosen.qm_web_prefix}] if chosen.qm_web_prefix else None,
        generate_unique_id_function=lambda route: f"{route.tags[0]}_{route.name}" if route.tags else route.name,
    )
    api.state.authenticator, api.state.live, api.state.ending = authenticator, live, ending
    exception_handlers.install(api)
    login.install(api)
    api.state.overview_feed = overview
    for router in ROUTERS:
        api.include_router(router)
    if chosen.qm_hooks:
        api.include_router(triggers.router)
    pages.install(api)
    # Message traffic is not compressed: its routes are served before the framework.
    api.add_middleware(
        GZipMiddleware,
        minimum_size=MIN_COMPRESSED,
        compresslevel=COMPRESSION_LEVEL,
        exclude_content_types=UNCOMPRESSED,
    )
    if message_feed is not None:
        messages.install(api, message_feed)
    if job_feed is not None:
        jobs.install(api, job_feed)
    list(required_roles(api))  # every route has one
    return api
