"""Connections that are lost, refused or forked: which error they raise, and that the next command has a new one."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import redis
import uvloop
from redis.asyncio import Redis

from queue_manager.core.process import PerProcess
from queue_manager.core.redis_client import (
    REDIS_OUTAGES,
    TCP_OPTIONS,
    describe_outage,
    make_async_client,
    make_client,
)
from tasks import app
from tests.eventually import eventually
from tests.real_servers import Servers


def require_options(of: socket.socket) -> None:
    assert of.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert {name: of.getsockopt(socket.IPPROTO_TCP, name) for name in TCP_OPTIONS} == TCP_OPTIONS


def test_sync_connections_have_tcp_keepalive_options(clean: Servers) -> None:
    assert socket.TCP_USER_TIMEOUT in TCP_OPTIONS
    with make_client(clean.valkey.url) as client:
        require_options(client.connection_pool.get_connection()._sock)

    with app.connection_for_read() as connection:
        require_options(connection.default_channel.client.connection_pool.get_connection()._sock)


def test_each_thread_of_a_large_pool_gets_a_connection(clean: Servers) -> None:
    with make_client(clean.valkey.url) as client:
        pool = client.connection_pool
        used = [pool.get_connection() for _ in range(200)]
        for one in used:
            pool.release(one)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    found: Callable[[], asyncio.AbstractEventLoop] = request.param
    return found


def execute(loop: Callable[[], asyncio.AbstractEventLoop], url: str, act: Callable[[Redis], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with make_async_client(url) as client:
            await client.ping()
            await act(client)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(connected())


def test_asyncio_connections_have_tcp_keepalive_options(
    loop: Callable[[], asyncio.AbstractEventLoop], clean: Servers
) -> None:
    async def act(client: Redis) -> None:
        connection = await client.connection_pool.get_connection()
        require_options(connection._writer.transport.get_extra_info("socket"))

    execute(loop, clean.valkey.url, act)


def test_a_command_on_a_closed_transport_is_an_outage(
    loop: Callable[[], asyncio.AbstractEventLoop], clean: Servers
) -> None:
    async def act(client: Redis) -> None:
        connection = await client.connection_pool.get_connection()
        connection._writer.transport.abort()
        await client.connection_pool.release(connection)
        for _ in range(3):  # the transport may take until the next turn of the loop to be closed
            try:
                await connection.send_command("PING")
                await connection.read_response()
            except REDIS_OUTAGES:
                return
        pytest.fail("the closed connection was used")

    execute(loop, clean.valkey.url, act)


@pytest.mark.parametrize("timeout", [None, 1])
def test_a_listener_notices_that_the_kernel_closed_its_connection(
    timeout: float | None, loop: Callable[[], asyncio.AbstractEventLoop], clean: Servers
) -> None:
    async def act(client: Redis) -> None:
        async with client.pubsub() as subscribed:
            await subscribed.subscribe("nothing")
            assert (await subscribed.get_message(timeout=20) or {})["type"] == "subscribe"
            # What the loop passes on if the system gives up: ETIMEDOUT, which Python makes a TimeoutError.
            subscribed.connection._reader.set_exception(TimeoutError(110, "Connection timed out"))
            with pytest.raises(redis.ConnectionError):
                await asyncio.wait_for(subscribed.get_message(timeout=timeout), 5)

    execute(loop, clean.valkey.url, act)


def test_a_refused_connection_of_an_event_loop_is_closed(
    loop: Callable[[], asyncio.AbstractEventLoop], clean: Servers
) -> None:
    async def act(client: Redis) -> None:
        connection = await client.connection_pool.get_connection()
        await connection.send_command("CLIENT", "ID")
        id = await connection.read_response()
        await connection.send_command("BLPOP", "nothing", 0)
        with make_client(clean.valkey.url) as other:
            # With the error that it gets when its server becomes a replica.
            unblock = partial(other.execute_command, "CLIENT", "UNBLOCK", id, "ERROR")
            await asyncio.to_thread(eventually, unblock)
        with pytest.raises(redis.ResponseError, match="UNBLOCKED"):
            await connection.read_response()
        assert not connection.is_connected

    execute(loop, clean.valkey.url, act)


def test_a_child_creates_its_own_client_although_its_parent_was_just_creating_one() -> None:
    client = PerProcess(object)
    parent = client()
    with client._lock:
        child = os.fork()
        if child == 0:
            is_own = client._lock.acquire(blocking=False)
            client._lock.release()
            os._exit(0 if is_own and client() is not parent else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client() is parent


def test_a_server_that_loads_its_data_is_described_as_loading() -> None:
    error = redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory")
    said = describe_outage("redis://:secret@host:6379/0", error)
    assert (
        said == "Redis at redis://***@host:6379/0 has not loaded its data yet (Redis is loading the dataset in memory)"
    )
