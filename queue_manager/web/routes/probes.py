"""Health probes. `/healthz`: the process is alive. `/readyz`: every server that it needs takes a write.

`/readyz?deep` also names the problems of all systems.

Guarantee: a response within about `SERVER_TIMEOUT` (a second more if deep), however a server hangs. A server gets at
most one write per `WRITE_INTERVAL`; requests in between get the same answer. Responses name no address; the log has the
details, at each change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Literal

import pymongo
import redis
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from pymongo.errors import NotPrimaryError, OperationFailure, WTimeoutError

from models import database, deployment
from queue_manager.core.background import call_within
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import make_client
from queue_manager.core.settings import redact_url, settings
from queue_manager.server_calls import broker
from queue_manager.web.auth.authorization import public
from queue_manager.web.http.errors import Error
from queue_manager.web.routes.systems.events import overview_states
from services.message_queue import server_url

SERVER_TIMEOUT = 2.0  # seconds for each server; all are checked concurrently
MONGODB_PROBE_TIMEOUT = 1.5  # seconds; shorter, so that the driver reports what is wrong
WRITE_INTERVAL = 1.0  # seconds
READINESS_KEY, QUEUE_READINESS_KEY = "qm:readiness", "_readiness"  # with QUEUE_NAME before it, for its hash slot
READINESS_KEY_TTL_MS = 60_000

NO_ANSWER = "does not answer"
REFUSED_WRITE = "refuses to write"
REFUSED_LOGIN = "refuses our credentials"
NO_MAJORITY = "cannot confirm a write by a majority of its members"

Deep = Annotated[
    str | None, Query(description="If present, with any value or none, problems of systems and components also count.")
]

log = get_logger("QM/ready")
router = APIRouter(dependencies=[public], tags=["probes"])


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class NotReady(Error):
    """Servers that the process needs do not take writes."""

    reasons: list[str] = Field(description="One sentence per server, and the system and rule of each problem.")


@router.get("/healthz")
async def healthz() -> Alive:
    """Return 200 while the process is alive."""
    return Alive()


@router.get("/readyz", response_model=Alive, responses={503: {"model": NotReady, "description": "Not ready"}})
async def readyz(request: Request, deep: Deep = None) -> JSONResponse | Alive:
    """Return 200 if every server that this process needs accepts a write and, with `deep`, no system has a problem."""
    reasons = await _readiness.problems()
    if deep is not None:
        state = await overview_states(request).state()
        reasons = reasons + [f"{problem.system}: {problem.rule.id}" for problem in state.all_problems]
    if not reasons:
        return Alive()
    problem = NotReady(error="not ready", message="; ".join(reasons), reasons=reasons)
    return JSONResponse(problem.model_dump(), status_code=HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that is needed. `problem` describes an error of `write` without an address."""

    name: str
    url: str
    write: Callable[[], object]
    problem: Callable[[Exception], str]


class Readiness:
    """The check of `/readyz`, shared by the requests of a second."""

    def __init__(self) -> None:
        self._logged: dict[str, str] = {}
        self._check: asyncio.Task[list[str]] | None = None
        self._began_at = 0.0

    async def problems(self) -> list[str]:
        """Return one sentence per server that this process cannot use; empty when it is ready."""
        now = time.monotonic()
        if self._check is None or (self._check.done() and now - self._began_at >= WRITE_INTERVAL):
            self._check, self._began_at = asyncio.create_task(self._check_all()), now
        return await asyncio.shield(self._check)

    async def _check_all(self) -> list[str]:
        servers = needed_servers()
        problems = await asyncio.gather(*map(self._problem_of, servers))
        return [f"{one.name} {problem}" for one, problem in zip(servers, problems, strict=True) if problem]

    async def _problem_of(self, server: Server) -> str | None:
        """Return the problem of a server, if any; log the driver's error."""
        problem, details = None, ""
        try:
            await call_within(SERVER_TIMEOUT, server.write)  # not in a thread of requests, which may all be busy
        except TimeoutError:
            problem, details = NO_ANSWER, f"no answer within {SERVER_TIMEOUT:g} s"
        except Exception as error:  # any error means that the server cannot be used
            problem, details = server.problem(error), reason(error)
        self._log_change(server, problem, details)
        return problem

    def _log_change(self, server: Server, problem: str | None, details: str) -> None:
        if problem == self._logged.get(server.name):
            return
        if problem is None:
            del self._logged[server.name]
            log.info(f"Ready again: {server.name} at {server.url}")
        else:
            self._logged[server.name] = problem
            log.warning(f"Not ready: {server.name} at {server.url} {problem}", error=details)


_readiness = Readiness()


def needed_servers() -> list[Server]:
    """Return the servers that the settings require."""
    chosen = settings()
    servers = [_redis("Redis", chosen.redis_url, _main, key=READINESS_KEY)]
    if chosen.qm_message_queue and server_url() != chosen.redis_url:
        key = f"{chosen.queue_name}{QUEUE_READINESS_KEY}"
        servers.append(_redis("The message queue's Redis", server_url(), _queue, key=key))
    if chosen.broker != chosen.redis_url:
        servers.append(_broker(chosen.broker))
    mongo = Server(
        name="MongoDB",
        url=redact_url(chosen.mongo_db_url),
        write=_write_to_mongodb,
        problem=_problem_of_mongodb,
    )
    return [mongo, *servers]


def _redis(name: str, url: str, client: Callable[[], redis.Redis], *, key: str) -> Server:
    return Server(
        name=name,
        url=redact_url(url),
        write=lambda: client().set(key, "1", px=READINESS_KEY_TTL_MS),
        problem=_problem_of_redis,
    )


def _broker(url: str) -> Server:
    return Server(name="The broker", url=redact_url(url), write=_connect, problem=lambda _: NO_ANSWER)


def _connect() -> None:
    with broker():
        pass


def _client(url: str) -> redis.Redis:
    return make_client(url, socket_timeout=SERVER_TIMEOUT, socket_connect_timeout=SERVER_TIMEOUT)


_main = PerProcess(lambda: _client(settings().redis_url))
_queue = PerProcess(lambda: _client(server_url()))


def _write_to_mongodb() -> None:
    with pymongo.timeout(MONGODB_PROBE_TIMEOUT):
        deployment.probe_write()


def _problem_of_redis(error: Exception) -> str:
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return REFUSED_LOGIN
    return REFUSED_WRITE if isinstance(error, redis.ResponseError) else NO_ANSWER


def _problem_of_mongodb(error: Exception) -> str:
    database.leave_if_logged_out(error)
    if isinstance(error, WTimeoutError):
        return NO_MAJORITY
    if database.is_login_refused(error):
        return REFUSED_LOGIN
    is_refused = isinstance(error, NotPrimaryError | OperationFailure) and not error.timeout
    return REFUSED_WRITE if is_refused else NO_ANSWER
