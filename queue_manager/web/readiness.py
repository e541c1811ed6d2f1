"""Whether this process can do its work: each server that it needs takes a write.

Guarantee: an answer within `TIMEOUT`, however a server hangs. A server is written to once in `WRITE_INTERVAL` at most;
in between it must answer a ping. What is said in public names no address: the log has the details, at each change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import pymongo
import redis
from anyio import CapacityLimiter, to_thread
from pymongo.errors import NotPrimaryError, OperationFailure, PyMongoError, WriteError, WTimeoutError

from models import readiness
from models.database import database
from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import PerProcess, make_client
from queue_manager.core.settings import redact_url, settings
from queue_manager.web.publishing import broker
from services.message_queue import server_url

TIMEOUT = 2.0  # seconds for each server; all are asked at once
PROBES = CapacityLimiter(8)  # threads of their own: those of requests may all be busy
WRITE_INTERVAL = 1.0  # seconds
MONGO_TIMEOUT = 1.5  # seconds; shorter, so that the driver says what is wrong
KEY = "qm:readiness"
KEY_EXPIRES_MS = 60_000

NO_ANSWER, REFUSED_WRITE, REFUSED_LOGIN, NO_MAJORITY = (
    "does not answer",
    "refuses to write",
    "refuses our credentials",
    "cannot confirm a write by a majority of its members",
)

log = get_logger("QM/ready")


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that is needed. `trouble` turns an error into words that name no address."""

    name: str
    url: str
    write: Callable[[], object]
    ping: Callable[[], object]
    trouble: Callable[[Exception], str]


class Readiness:
    """What `/readyz` answers. All who ask at the same time share one look."""

    def __init__(self) -> None:
        self._written_at: dict[str, float] = {}
        self._failed_write: dict[str, str] = {}
        self._said: dict[str, str] = {}
        self._asking: asyncio.Task[list[str]] | None = None

    async def problems(self) -> list[str]:
        """Return what is wrong with each server that this process cannot use: empty when it is ready."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> list[str]:
        try:
            servers = needed()
            troubles = await asyncio.gather(*map(self._trouble_of, servers))
            return [f"{one.name} {said}" for one, said in zip(servers, troubles, strict=True) if said is not None]
        finally:
            self._asking = None

    async def _trouble_of(self, server: Server) -> str | None:
        now = time.monotonic()
        is_write = now - self._written_at.get(server.name, -WRITE_INTERVAL) >= WRITE_INTERVAL
        if not is_write and (failed := self._failed_write.get(server.name)) is not None:
            return failed
        if is_write:
            self._written_at[server.name] = now
            self._failed_write.pop(server.name, None)
        said, details = await _tried(server, server.write if is_write else server.ping)
        if said is not None and is_write:
            self._failed_write[server.name] = said
        self._log_change(server, said, details)
        return said

    def _log_change(self, server: Server, said: str | None, details: str) -> None:
        if said == self._said.get(server.name):
            return
        if said is None:
            del self._said[server.name]
            log.info(f"Ready again: {server.name} at {server.url}")
        else:
            self._said[server.name] = said
            log.warning(f"Not ready: {server.name} at {server.url} {said}", error=details)


async def _tried(server: Server, act: Callable[[], object]) -> tuple[str | None, str]:
    """Return what is wrong, in public words and in those of the driver."""
    try:
        # A thread that hangs is left alone; it ends by the timeouts of its client.
        await asyncio.wait_for(to_thread.run_sync(act, abandon_on_cancel=True, limiter=PROBES), TIMEOUT)
    except TimeoutError:
        return NO_ANSWER, f"no answer within {TIMEOUT:g} s"
    except Exception as error:  # any error means that the server cannot be used
        return server.trouble(error), reason(error)
    return None, ""


def needed() -> list[Server]:
    """Return the servers that this process needs by its settings."""
    chosen = settings()
    servers = [_redis("Redis", chosen.redis_url, _main)]
    if chosen.qm_message_queue and server_url(chosen) != chosen.redis_url:
        servers.append(_redis("The message queue's Redis", server_url(chosen), _queue))
    if chosen.broker != chosen.redis_url:
        servers.append(_broker(chosen.broker))
    mongo = Server(
        name="MongoDB",
        url=redact_url(chosen.mongo_db_url),
        write=lambda: _in_time(readiness.write),
        ping=lambda: _in_time(lambda: database().command("ping")),
        trouble=_trouble_of_mongodb,
    )
    return [mongo, *servers]


def _redis(name: str, url: str, client: Callable[[], redis.Redis]) -> Server:
    return Server(
        name=name,
        url=redact_url(url),
        write=lambda: client().set(KEY, "1", px=KEY_EXPIRES_MS),
        ping=lambda: client().ping(),
        trouble=_trouble_of_redis,
    )


def _broker(url: str) -> Server:
    return Server(name="The broker", url=redact_url(url), write=_connect, ping=_connect, trouble=lambda _: NO_ANSWER)


def _connect() -> None:
    with broker():
        pass


def _client(url: str) -> redis.Redis:
    return make_client(url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT)


_main = PerProcess(lambda: _client(settings().redis_url))
_queue = PerProcess(lambda: _client(server_url()))


def _in_time(act: Callable[[], object]) -> None:
    with pymongo.timeout(MONGO_TIMEOUT):
        act()


def _trouble_of_redis(error: Exception) -> str:
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return REFUSED_LOGIN
    return REFUSED_WRITE if isinstance(error, redis.ResponseError) else NO_ANSWER


def _trouble_of_mongodb(error: Exception) -> str:
    if isinstance(error, WTimeoutError):
        return NO_MAJORITY
    if isinstance(error, OperationFailure) and error.code == _AUTHENTICATION_FAILED:
        return REFUSED_LOGIN
    is_refused = isinstance(error, WriteError | NotPrimaryError | OperationFailure)
    return REFUSED_WRITE if is_refused and not (isinstance(error, PyMongoError) and error.timeout) else NO_ANSWER


_AUTHENTICATION_FAILED = 18
