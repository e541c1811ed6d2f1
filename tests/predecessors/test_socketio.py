"""Node Socket.IO servers receive events through Socket.IO's Redis adapters, of rooms that wake and after a restart."""

from __future__ import annotations

import json
import os
import queue
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from socketio import SimpleClient
from socketio.exceptions import TimeoutError as NothingReceived

from dev.children import spawn
from dev.ports import free_port, is_answering
from models.database import server_now
from queue_manager.core.clock import seconds, to_iso
from queue_manager.core.redis_client import connect
from services.realtime import RedisEvents
from tasks import app
from tests.documented import DOCS, block
from tests.e2e.celery_processes import ROOT, worker
from tests.eventually import eventually
from tests.predecessors.node_process import NodeProcess, node
from tests.real_servers import Servers
from tests.rooms import get_room, make_room

pytestmark = pytest.mark.node

EVENT = "support_room_updated"
ROOM = "support-acc1"
NODE_ADAPTERS = ("redis", "redis-streams")
PAGE = DOCS / "how-to" / "socketio.md"
IMPORTS = """
import { createAdapter } from "@socket.io/redis-adapter";
import { createClient } from "redis";
import { Server } from "socket.io";
"""


@pytest.mark.parametrize("adapters", [["redis"], ["redis-streams"], ["python", "redis", "redis-streams"]], ids=",".join)
def test_clients_of_every_server_receive_the_event_of_a_room_that_wakes(
    adapters: list[str], clean: Servers, tmp_path: Path
) -> None:
    rooms = [make_room(server_now() - seconds(1), account_id="acc1") for _ in range(2)]
    ports = {adapter: free_port() for adapter in adapters}
    with ExitStack() as processes, connect(clean.valkey.url) as valkey:
        subscribers = valkey.pubsub_numsub("socketio")[0][1]  # the web processes of other tests
        for adapter, port in ports.items():
            processes.enter_context(python_server(port) if adapter == "python" else server(adapter, port, clean))
        clients = [processes.enter_context(client(port)) for port in ports.values()]
        if "python" in adapters:  # it subscribes after its first client
            eventually(lambda: valkey.pubsub_numsub("socketio")[0][1] > subscribers)
        processes.enter_context(worker(tmp_path / "worker.log", env={"SOCKETIO_ADAPTER": ",".join(adapters)}))
        for room in rooms:  # a second event shows that the first arrived once
            app.send_task("tasks.support_snooze.unsnooze_room", [str(room)])
            received = [one.next() for one in clients]
            woken_at = to_iso(get_room(room)["unsnoozed_at"])
            data = {"room_id": str(room), "action": "unsnoozed", "timestamp": woken_at}
            assert received == [{"event": EVENT, "data": data}] * len(adapters)


def test_socketio_server_of_the_documentation_receives_the_event_of_a_room(clean: Servers) -> None:
    port = free_port()
    given = f"const REDIS_URL = {json.dumps(clean.valkey.url)}, accountOf = () => 'acc1';"
    listening = f"io.listen({port}); console.log(JSON.stringify({{ listening: true }}));"
    program = [IMPORTS, given, block(0, heading="Servers of your product", page=PAGE), listening]
    with node("--input-type=module", "--eval", "\n".join(program)) as process, SimpleClient() as receiver:
        assert process.next() == {"listening": True}
        receiver.connect(f"http://127.0.0.1:{port}")
        events = emitter("redis", clean)

        def heard() -> list[Any]:
            events.emit_all(EVENT, [(ROOM, {"number": 1})])  # again, until the server has subscribed
            with suppress(NothingReceived):
                return receiver.receive(timeout=1)
            return []

        assert eventually(heard) == [EVENT, {"number": 1}]


@pytest.mark.parametrize("library", ["redis", "ioredis"])
@pytest.mark.parametrize("adapter", NODE_ADAPTERS)
def test_events_of_a_room_arrive_once_in_order_and_unchanged(adapter: str, library: str, clean: Servers) -> None:
    port = free_port()
    with server(adapter, port, clean, library=library), client(port) as receiver:
        sent = [{"number": number, "text": "é \u2028 😀", "list": [None, True, -1.5, 2**40]} for number in range(300)]
        others = [("support-acc2", {"number": -1})] * len(sent)
        own = [(ROOM, data) for data in sent]
        emitter(adapter, clean).emit_all(EVENT, [message for pair in zip(own, others, strict=True) for message in pair])
        assert [receiver.next() for _ in sent] == [{"event": EVENT, "data": data} for data in sent]
        with pytest.raises(queue.Empty):
            receiver.next(within=0.5)


@pytest.mark.parametrize("adapter", NODE_ADAPTERS)
def test_a_server_that_was_killed_receives_the_events_after_its_restart(adapter: str, clean: Servers) -> None:
    events, port = emitter(adapter, clean), free_port()
    with ExitStack() as processes:
        with server(adapter, port, clean):
            receiver = processes.enter_context(client(port))
            events.emit_all(EVENT, [(ROOM, {"number": 1})])
            assert receiver.next()["data"] == {"number": 1}
        assert receiver.next() == {"connected": False}
        events.emit_all(EVENT, [(ROOM, {"number": 2})])
        processes.enter_context(server(adapter, port, clean))
        assert receiver.next() == {"connected": True, "recovered": False}
        events.emit_all(EVENT, [(ROOM, {"number": 3})])
        assert receiver.next()["data"] == {"number": 3}  # the second is lost


def test_a_server_with_a_stream_receives_the_events_of_an_interruption(clean: Servers) -> None:
    events, port = emitter("redis-streams", clean), free_port()
    with server("redis-streams", port, clean), client(port) as receiver, connect(clean.valkey.url) as valkey:
        events.emit_all(EVENT, [(ROOM, {"number": 1})])
        assert receiver.next()["data"] == {"number": 1}
        readers = [one for one in valkey.client_list() if one["name"].startswith("redis-streams-")]
        (reader,) = [one for one in readers if one["cmd"] == "xread"]
        valkey.client_kill_filter(_id=reader["id"])
        events.emit_all(EVENT, [(ROOM, {"number": 2})])
        assert receiver.next()["data"] == {"number": 2}


def test_connection_state_recovery_delivers_what_a_client_missed_during_a_restart(clean: Servers) -> None:
    events, port = emitter("redis-streams", clean), free_port()
    with ExitStack() as processes:
        with server("redis-streams", port, clean) as process:
            receiver = processes.enter_context(client(port))
            events.emit_all(EVENT, [(ROOM, {"number": 1})])
            assert receiver.next()["data"] == {"number": 1}
            process.send("close")
            assert process.next() == {"closed": True}
        assert receiver.next() == {"connected": False}
        events.emit_all(EVENT, [(ROOM, {"number": 2}), ("support-acc2", {"number": -1}), (ROOM, {"number": 3})])
        processes.enter_context(server("redis-streams", port, clean))
        assert [receiver.next() for _ in range(3)] == [
            {"event": EVENT, "data": {"number": 2}},
            {"event": EVENT, "data": {"number": 3}},
            {"connected": True, "recovered": True},
        ]


def emitter(adapter: str, servers: Servers) -> RedisEvents:
    return RedisEvents(servers.valkey.url, adapters=[adapter])


@contextmanager
def client(port: int) -> Iterator[NodeProcess]:
    """A client in `ROOM`."""
    with node("socketio_client.mjs", f"http://127.0.0.1:{port}", ROOM) as process:
        assert process.next() == {"connected": True, "recovered": False}
        yield process


@contextmanager
def server(adapter: str, port: int, servers: Servers, *, library: str = "redis") -> Iterator[NodeProcess]:
    """A Node server that receives events, with a Redis client of `library`."""
    with node("socketio_server.mjs", adapter, library, servers.valkey.url, str(port)) as process:
        assert process.next() == {"listening": True}
        yield process


@contextmanager
def python_server(port: int) -> Iterator[None]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = spawn([sys.executable, "-m", "tests.e2e.socketio_server", str(port)], env=env)
    try:
        eventually(lambda: is_answering(port))
        yield
    finally:
        process.kill()
