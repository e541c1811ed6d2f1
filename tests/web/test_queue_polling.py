"""Long polls: a message ends the wait immediately, and a client that has disconnected takes nothing."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from dev.supervisor import STOP_GRACE
from services.message_queue.scripts import source
from tests.eventually import eventually
from tests.pace import promptly
from tests.real_servers import Servers
from tests.web.queue_client import NAME, Queue, Stream, environment
from tests.web.web_process import Answer, forked_web

pytestmark = pytest.mark.processes


LOOKS = 2
"""How often one who waits looks for a message: before it waits, and once it would be woken."""


class Watch:
    """Counts the looks for a message, and the reads that wait for one, in the commands that the server gets."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._scripts = [client.script_load(source(name)) for name in ("dequeue", "dequeue_typed")]
        self._monitor = client.monitor()
        self.looks = self.reads = 0

    def __enter__(self) -> Watch:
        self._monitor.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._monitor.__exit__()

    def until(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            self._next()

    def catch_up(self) -> None:
        """Count all that has been sent until now."""
        end = uuid4().hex
        self._client.echo(end)
        while end not in self._next():
            pass

    def _next(self) -> str:
        command: str = self._monitor.next_command()["command"]
        self.looks += command.startswith("EVALSHA") and any(sha in command for sha in self._scripts)
        self.reads += command.startswith("XREAD") and f" {NAME} " in command
        return command


@contextmanager
def watching(queue: Queue) -> Iterator[Watch]:
    with queue.redis() as client, Watch(client) as watch:
        yield watch


@contextmanager
def looking(queue: Queue, clients: int) -> Iterator[None]:
    """Wait at the end until that many clients have asked for a message."""
    with watching(queue) as watch:
        yield
        watch.until(lambda: watch.looks >= clients)


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
    with watching(queue) as watch, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(queue.get, "/queue/message?timeout=60")
        watch.until(lambda: watch.looks >= LOOKS)
        reads = watch.reads
        watch.until(lambda: watch.reads >= reads + 2)  # no message for a whole read of two seconds
        began = time.monotonic()
        id = queue.add()
        assert answer.result(20).body["id"] == id  # and not when it has waited enough
        took = time.monotonic() - began
        watch.catch_up()
        assert watch.looks == LOOKS + 1
    figure(f"queue: long poll answered {took * 1000:.0f} ms after the message was sent")


def test_a_wait_without_a_message_ends_in_time(queue: Queue) -> None:
    with promptly(2.2):
        answer = queue.get("/queue/message?timeout=1.5")
    assert answer.status == 404
    assert answer.took > 1.4


def test_the_longest_wait_ends_before_a_proxy_gives_up_after_60_s(queue: Queue) -> None:
    began = time.monotonic()
    with watching(queue) as watch, raw(queue, "timeout=60") as client:
        client.settimeout(70)
        answer = client.recv(4096)
        took = time.monotonic() - began
        watch.catch_up()

    assert answer.startswith(b"HTTP/1.1 404")
    assert 54 < took < 59
    assert watch.looks == LOOKS  # it waits, and does not ask again and again


def test_an_available_message_is_delivered_immediately(queue: Queue) -> None:
    queue.add()
    with watching(queue) as watch:
        assert queue.get("/queue/message?timeout=60").status == 200  # the client itself waits for 30 s
        watch.catch_up()
    assert watch.looks == 1


def test_each_message_is_delivered_to_one_waiting_client(queue: Queue) -> None:
    with waiting(queue, *["timeout=3"] * 4) as answers:
        ids = {queue.add() for _ in range(3)}
        bodies = [answer.result(20) for answer in answers]
    assert {answer.body["id"] for answer in bodies if answer.status == 200} == ids
    assert [answer.status for answer in bodies].count(404) == 1


def test_a_wait_for_a_type_ends_with_that_type(queue: Queue) -> None:
    with waiting(queue, "timeout=20&type=sms") as (answer,):
        queue.add("mail")
        wanted = queue.add("sms")
        assert answer.result(20).body["id"] == wanted


def test_a_rejected_message_ends_the_wait(queue: Queue) -> None:
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


def test_a_disconnected_client_takes_no_message(queue: Queue) -> None:
    with looking(queue, 1):
        client = raw(queue, "timeout=20")
    client.close()
    id = queue.add()
    time.sleep(0.5)
    (message,) = queue.page("main")["messages"]
    assert (message["id"], message["attempt_count"]) == (id, 0)


@pytest.mark.parametrize("query", ["", "timeout=20"])
def test_clients_that_disconnect_before_the_dequeue_take_no_message(queue: Queue, query: str) -> None:
    ids = [queue.add() for _ in range(10)]
    with queue.redis() as client:
        client.client_pause(1500, all=True)  # the first request is on its way, and the others wait for its reply
    clients = [raw(queue, query) for _ in ids]
    time.sleep(0.5)
    for one in clients:
        one.close()
    eventually(lambda: queue.sizes()[1] > 0)
    time.sleep(0.5)
    waiting, held, *_ = queue.sizes()
    assert waiting + held == len(ids)
    assert held < 5


def test_a_message_for_a_disconnected_client_goes_to_the_next_one(queue: Queue) -> None:
    with looking(queue, 5):
        gone = [raw(queue, "timeout=20") for _ in range(5)]
    with waiting(queue, "timeout=20") as (answer,):
        for client in gone:
            client.close()
        id = queue.add()
        assert answer.result(20).body["id"] == id
    assert queue.sizes() == (0, 1, 0, 0, 0)


def test_200_waiting_clients_delay_no_other_request(queue: Queue, figure: Callable[[str], None]) -> None:
    with ExitStack() as stack:
        queries = [f"timeout=60{'&type=never' if n % 2 else ''}" for n in range(200)]
        with looking(queue, LOOKS * 200):
            clients = [stack.enter_context(raw(queue, query)) for query in queries]
        threads = len(list(Path(f"/proc/{queue.web.child.pid}/task").iterdir()))
        with watching(queue) as watch:
            answers = [queue.get("/queue/status") for _ in range(100)]
            watch.catch_up()
        answered, _, _ = select.select(clients, [], [], 0)
    took = sorted(answer.took for answer in answers)
    figure(f"queue: with 200 clients waiting, a request takes {took[50] * 1000:.1f} ms (p50), {threads} threads")
    assert {answer.status for answer in answers} == {200}
    assert answered == []  # all of them still wait, so that no request waited for one of them
    assert watch.looks == 0
    assert threads < 80


def test_a_burst_of_messages_reaches_200_waiting_clients(queue: Queue) -> None:
    with ExitStack() as stack:
        with looking(queue, 200):
            clients = [stack.enter_context(raw(queue, "timeout=60")) for _ in range(200)]
        queue.post("/queue/batch", [{"type": "a"}] * 200)
        statuses = [client.recv(12)[-3:] for client in clients]
    assert statuses == [b"200"] * 200
    assert queue.sizes() == (0, 200, 0, 0, 0)


def test_process_ends_orderly_during_a_long_clear(servers: Servers, tmp_path: Path) -> None:
    url, many = servers.valkey.url.removesuffix("/0") + "/8", 50_000
    with redis.Redis.from_url(url) as client, forked_web(tmp_path, **environment(url)) as process:
        client.flushdb()
        with client.pipeline(transaction=False) as pipe:
            for number in range(many):
                pipe.xadd(NAME, {"data": f'{{"id":"{number}","type":"mail","payload":1}}'})
            pipe.execute()
        with socket.create_connection(("127.0.0.1", process.port), timeout=20) as clearing:
            clearing.sendall(b"DELETE /api/queue/clear HTTP/1.1\r\nHost: localhost\r\n\r\n")
            eventually(lambda: client.xlen(NAME) < many)
            os.kill(process.child.pid, signal.SIGTERM)
            assert process.child.wait(20) == 0
        assert 0 < client.xlen(NAME) < many
        assert "Traceback" not in process.log
        client.flushdb()


def test_process_ends_orderly_although_clients_wait_and_listen(servers: Servers, tmp_path: Path) -> None:
    url = servers.valkey.url.removesuffix("/0") + "/8"
    with forked_web(tmp_path, **environment(url)) as process:
        queue = Queue(process, url)
        with ExitStack() as stack:
            with looking(queue, 20):
                clients = [stack.enter_context(raw(queue, "timeout=60")) for _ in range(20)]
            stream = stack.enter_context(Stream(process))
            os.kill(process.child.pid, signal.SIGTERM)
            assert process.child.wait(STOP_GRACE) == 0
            assert {client.recv(12)[-3:] for client in clients} == {b"404"}  # 503 if they were canceled
            assert [block for block in stream.blocks() if "data" in block] == []
            assert stream.is_complete
        assert "Traceback" not in process.log
        assert "error" not in process.log
