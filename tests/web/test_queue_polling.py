"""Long polls: a message ends the wait at once, and a client that has disconnected takes nothing."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from services.message_queue.scripts import source
from tests.eventually import eventually
from tests.pace import paced, promptly
from tests.real_servers import Servers
from tests.web.queue_client import NAME, Queue, Stream, empty_queue, environment
from tests.web.web_process import Answer, forked_web

pytestmark = pytest.mark.processes


@pytest.fixture
def queue(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(servers, tmp_path_factory)


@contextmanager
def looking(queue: Queue, clients: int) -> Iterator[None]:
    """Wait at the end until that many clients have asked for a message."""
    with queue.redis() as client:
        scripts = [client.script_load(source(name)) for name in ("dequeue", "dequeue_typed")]
        with client.monitor() as monitor:
            yield
            asked = 0
            while asked < clients:
                command = monitor.next_command()["command"]
                asked += command.upper().startswith("EVALSHA") and any(sha in command for sha in scripts)


@contextmanager
def waiting(queue: Queue, *queries: str) -> Iterator[list[Future[Answer]]]:
    """Let clients wait, the first one the longest."""
    with ThreadPoolExecutor(len(queries)) as threads:
        answers = []
        for query in queries:
            with looking(queue, 1):
                answers.append(threads.submit(queue.get, f"/queue/message?{query}"))
        yield answers


def raw(queue: Queue, query: str) -> socket.socket:
    """Return a client that waits, and reads nothing."""
    client = socket.create_connection(("127.0.0.1", queue.web.port), timeout=40)
    client.sendall(f"GET /api/queue/message?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


def test_a_message_that_arrives_ends_the_wait(queue: Queue, figure: Callable[[str], None]) -> None:
    with waiting(queue, "timeout=20") as (answer,):
        with promptly(0.5):
            began = time.monotonic()
            id = queue.add()
            assert answer.result(20).body["id"] == id
            took = time.monotonic() - began
    figure(f"queue: long poll answered {took * 1000:.0f} ms after the message was sent")


def test_a_wait_without_a_message_ends_in_time(queue: Queue) -> None:
    with promptly(2.2):
        answer = queue.get("/queue/message?timeout=1.5")
    assert answer.status == 404
    assert answer.took > 1.4


def test_the_longest_wait_ends_before_a_proxy_gives_up_after_60_s(queue: Queue) -> None:
    began = time.monotonic()
    with raw(queue, "timeout=60") as client:
        client.settimeout(70)
        answer = client.recv(4096)
    took = time.monotonic() - began

    assert answer.startswith(b"HTTP/1.1 404")
    assert 54 < took < 59


def test_a_message_that_is_there_is_given_at_once(queue: Queue) -> None:
    queue.add()
    with promptly(0.5):
        assert queue.get("/queue/message?timeout=20").status == 200


def test_each_message_goes_to_one_of_those_who_wait(queue: Queue) -> None:
    with waiting(queue, *["timeout=3"] * 4) as answers:
        ids = {queue.add() for _ in range(3)}
        bodies = [answer.result(20) for answer in answers]
    assert {answer.body["id"] for answer in bodies if answer.status == 200} == ids
    assert [answer.status for answer in bodies].count(404) == 1


def test_a_wait_for_a_type_ends_with_that_type(queue: Queue) -> None:
    with waiting(queue, "timeout=20&type=sms") as (answer,):
        queue.add("mail")
        time.sleep(0.3)
        assert not answer.done()
        wanted = queue.add("sms")
        assert answer.result(20).body["id"] == wanted


def test_a_message_that_was_given_back_ends_the_wait(queue: Queue) -> None:
    id = queue.add()
    token = queue.take()["lock_token"]
    with waiting(queue, "timeout=20") as (answer,):
        queue.post(f"/queue/message/{id}/nack", {"lock_token": token})
        assert answer.result(20).body["attempt_count"] == 2


def test_a_message_that_timed_out_ends_the_wait(queue: Queue) -> None:
    queue.add(ackTimeout=1)
    queue.take()
    with waiting(queue, "timeout=20") as (answer,):
        assert answer.result(20).body["attempt_count"] == 2


def test_a_client_that_went_away_takes_nothing(queue: Queue) -> None:
    with looking(queue, 1):
        client = raw(queue, "timeout=20")
    client.close()
    id = queue.add()
    time.sleep(0.5)
    (message,) = queue.page("main")["messages"]
    assert (message["id"], message["attempt_count"]) == (id, 0)


def test_the_next_one_gets_what_came_for_a_client_that_went_away(queue: Queue) -> None:
    with looking(queue, 5):
        gone = [raw(queue, "timeout=20") for _ in range(5)]
    with waiting(queue, "timeout=20") as (answer,):
        for client in gone:
            client.close()
        id = queue.add()
        assert answer.result(20).body["id"] == id
    assert queue.sizes() == (0, 1, 0, 0, 0)


def test_200_waiting_clients_delay_nobody(queue: Queue, figure: Callable[[str], None]) -> None:
    with ExitStack() as stack:
        with looking(queue, 200):
            for n in range(200):
                stack.enter_context(raw(queue, f"timeout=60{'&type=never' if n % 2 else ''}"))
        threads = len(list(Path(f"/proc/{queue.web.child.pid}/task").iterdir()))
        with paced() as pace:
            took = sorted(queue.get("/queue/status").took for _ in range(100))
    figure(f"queue: with 200 clients waiting, a request takes {took[50] * 1000:.1f} ms (p50), {threads} threads")
    assert took[90] < 0.1 * pace.slowdown
    assert threads < 80


def test_a_storm_of_messages_reaches_200_waiting_clients(queue: Queue) -> None:
    with ExitStack() as stack:
        with looking(queue, 200):
            clients = [stack.enter_context(raw(queue, "timeout=60")) for _ in range(200)]
        queue.post("/queue/batch", [{"type": "a"}] * 200)
        statuses = [client.recv(12)[-3:] for client in clients]
    assert statuses == [b"200"] * 200
    assert queue.sizes() == (0, 200, 0, 0, 0)


def test_it_ends_in_order_in_the_middle_of_a_long_clear(servers: Servers, tmp_path: Path) -> None:
    url, many = servers.valkey.url.removesuffix("/0") + "/8", 50_000
    with redis.Redis.from_url(url) as client, forked_web(tmp_path, **environment(url)) as process:
        client.flushdb()
        with client.pipeline(transaction=False) as pipe:
            for number in range(many):
                pipe.xadd(NAME, {"data": f'{{"id":"{number}","type":"mail","payload":1}}'})
            pipe.execute()
        with socket.create_connection(("127.0.0.1", process.port), timeout=20) as clearing:
            clearing.sendall(b"DELETE /api/queue/clear HTTP/1.1\r\nHost: localhost\r\n\r\n")
            eventually(lambda: client.xlen(NAME) < many, within=20)
            os.kill(process.child.pid, signal.SIGTERM)
            assert process.child.wait(20) == 0
        assert 0 < client.xlen(NAME) < many
        assert "Traceback" not in process.log
        client.flushdb()


def test_it_ends_in_order_although_clients_wait_and_listen(servers: Servers, tmp_path: Path) -> None:
    url = servers.valkey.url.removesuffix("/0") + "/8"
    with forked_web(tmp_path, **environment(url)) as process:
        queue = Queue(process, url)
        with ExitStack() as stack:
            with looking(queue, 20):
                clients = [stack.enter_context(raw(queue, "timeout=60")) for _ in range(20)]
            stream = stack.enter_context(Stream(process))
            with promptly(2.5):
                os.kill(process.child.pid, signal.SIGTERM)
                assert process.child.wait(30) == 0
            assert {client.recv(12)[-3:] for client in clients} == {b"404"}
            assert [block for block in stream.blocks() if "data" in block] == []
        assert "Traceback" not in process.log
        assert "error" not in process.log
