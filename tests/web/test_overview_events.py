"""The event stream of the overview: sent on changes, computed once for all listeners, and only for listeners."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from beat_schedule import systems
from dev.servers import Valkey
from models import scan_run
from models.database import client, server_now
from queue_manager.core.clock import parse_utc, seconds
from queue_manager.web.live.event_feed import SEND_TIMEOUT
from tests.eventually import eventually
from tests.pace import promptly
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.web.queue_client import Stream
from tests.web.web_process import Web, forked_web

pytestmark = pytest.mark.processes

PATH = "/api/overview/events"
LOOK = "scan_marks"  # each overview reads it once, and once more for each scan without a run in the last 24 hours


class States(Stream):
    def __init__(self, web: Web, **headers: str) -> None:
        super().__init__(web, PATH, **headers)

    def states(self) -> Iterator[Any]:
        for name, data in self.events():
            assert name == "overview"
            yield data


def is_news(before: Any, state: Any) -> bool:
    return {**before, "server_time": None} != {**state, "server_time": None}


def due(state: Any) -> Any:
    return state["systems"][0]["due"]


def time_of(state: Any) -> datetime:
    at = parse_utc(state["server_time"], field="server_time")
    assert at is not None
    return at


def test_the_state_is_sent_first_and_on_every_change(clean: Servers, process: Web) -> None:
    with States(process) as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        states = stream.states()
        assert next(states).keys() == {
            "server_time",
            "servers",
            "leader",
            "workers",
            "counted_to",
            "systems",
            "problems",
        }
        for number in range(3):
            make_room(server_now() - seconds(1))
            with promptly(3):
                while due(next(states)) <= number:
                    pass


def test_an_unchanged_state_is_sent_every_five_seconds_and_immediately_to_new_listeners(
    clean: Servers, process: Web
) -> None:
    with States(process) as stream:
        states = stream.states()
        seen = [next(states), next(states)]
        while is_news(*seen):  # an earlier test's data may still be in the first
            seen = [seen[-1], next(states)]
        with States(process) as late:
            first = next(late.states())
        for _ in range(2):
            with promptly(7):
                seen.append(next(states))
    assert time_of(first) < time_of(seen[2])  # it did not wait for the next state of all listeners
    gaps = [later - earlier for earlier, later in pairwise(map(time_of, seen))]
    assert min(gaps) > seconds(3.5)  # a state is at most a second old when it is sent


def test_fifty_listeners_cost_one_query_a_second_and_none_without_listeners(clean: Servers, tmp_path: Path) -> None:
    run = {"found": 0, "claimed": 0, "enqueued": 0, "errors": 0, "duration_ms": 1}
    for system in systems():
        scan_run.record(system.scan_task, run, error=None, now=server_now())
    with forked_web(tmp_path) as process:
        with ExitStack() as stack:
            streams = [stack.enter_context(States(process)).states() for _ in range(50)]
            for states in streams:
                next(states)
            looks, began = looked(), time.monotonic()
            for states in streams:
                next(states)
                next(states)
            assert looked() - looks <= time.monotonic() - began + 2
        eventually(lambda: nobody_looks_for(1.5))


def looked() -> int:
    """Return how often the marks were read, by any process."""
    top = client().admin.command("top")["totals"]
    return sum(of["queries"]["count"] for name, of in top.items() if name.endswith(f".{LOOK}"))


def nobody_looks_for(duration: float) -> bool:
    before = looked()
    time.sleep(duration)
    return looked() == before


def test_overview_stream_ends_immediately_on_termination(servers: Servers, tmp_path: Path) -> None:
    with forked_web(tmp_path) as process, States(process) as stream:
        states = stream.states()
        next(states)
        with promptly(4):
            os.kill(process.child.pid, signal.SIGTERM)
            list(states)
            assert stream.is_complete
            process.child.wait(30)
        assert "error" not in process.log


def test_overview_stream_ends_immediately_while_a_server_hangs(servers: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey, forked_web(tmp_path, REDIS_URL=valkey.url) as process:
        with States(process) as stream:
            next(stream.states())
            os.kill(valkey.pid, signal.SIGSTOP)
            try:
                time.sleep(1.5)  # a look is under way
                with promptly(3):
                    os.kill(process.child.pid, signal.SIGTERM)
                    process.child.wait(30)
            finally:
                os.kill(valkey.pid, signal.SIGCONT)


def test_a_slow_listener_delays_no_other_and_gets_the_latest_state(clean: Servers, process: Web) -> None:
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", process.port))
    slow.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    took = []
    with slow, States(process) as quick:
        states = quick.states()
        for _ in range(3):
            next(states)
            for _ in range(30):
                answer = process.get("/healthz")
                assert answer.status == 200
                took.append(answer.took)
    assert sum(took) < SEND_TIMEOUT  # none waited for the slow one, nor all of them together for as long
