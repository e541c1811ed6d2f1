"""The web process requeues overdue messages at their deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from dev.ports import free_port
from dev.servers import Valkey
from tests.eventually import eventually
from tests.pace import paced, promptly
from tests.real_servers import Servers
from tests.web.queue_client import NAME, Queue, Stream, empty_queue, environment
from tests.web.web_process import forked_web

UNSHARED_DATABASE = 8


@pytest.fixture
def queue(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """A queue of which no process makes periodic sweeps: each one was scheduled because of a deadline."""
    return empty_queue(servers, tmp_path_factory, UNSHARED_DATABASE, OVERDUE_CHECK_INTERVAL_MS="3600000")


def test_overdue_messages_are_requeued_at_their_deadline(queue: Queue, figure: Callable[[str], None]) -> None:
    deadlines, late = {}, []
    with paced() as pace, Stream(queue.web) as stream:
        next(stream.blocks())
        queue.post("/queue/batch", [{"type": "a", "ackTimeout": 0.5 + n / 100} for n in range(200)])
        for _ in range(200):
            taken = queue.take()
            deadlines[taken["id"]] = taken["deadline_at"]
        for _, event in stream.events():
            if event["type"] == "requeue":
                late += [event["timestamp"] / 1000 - deadlines.pop(id) for id in event["payload"]["ids"]]
                if not deadlines:
                    break
    late.sort()
    figure(f"queue: deadline to requeued {late[100] * 1000:.0f} ms (p50), {late[197] * 1000:.0f} ms (p99)")
    assert late[0] >= 0
    assert late[197] < pace.allowed(0.25)


def test_a_touch_to_an_earlier_deadline_reschedules_the_sweep(queue: Queue) -> None:
    id = queue.add(ackTimeout=300)
    token = queue.take()["lock_token"]
    queue.put(f"/queue/message/{id}/touch", {"lock_token": token, "extend_seconds": 0.2})
    eventually(lambda: queue.ids("main") == [id])


def test_an_event_of_another_program_does_not_stop_sweeping(queue: Queue) -> None:
    with queue.redis() as client:
        for event in ('{"type":"dequeue"}', '{"type":"dequeue","payload":{"deadline":"soon"},"timestamp":0}'):
            client.xadd(f"{NAME}:events", {"event": event})
    id = queue.add(ackTimeout=0.3)
    queue.take()
    eventually(lambda: queue.ids("main") == [id])


def test_a_loss_of_data_does_not_stop_sweeping(queue: Queue) -> None:
    with Stream(queue.web) as stream, queue.redis() as client:
        id = queue.add()
        stream.until(lambda event: id in event["payload"]["ids"])
        client.flushdb()
        queue.add()  # ends the read of the stream, which notices the loss
        list(stream.events())
        for _ in range(10):
            id = queue.add(ackTimeout=0.1)
            queue.take()
            eventually(lambda id=id: queue.ids("main") == [id])
            queue.delete(f"/queue/message/{id}")


def test_an_overdue_message_without_attempts_is_dead_lettered(queue: Queue) -> None:
    id = queue.add(ackTimeout=0.1, maxAttempts=1)
    queue.take()
    eventually(lambda: queue.ids("dead") == [id])
    assert queue.page("dead")["messages"][0]["last_error"] == "Max attempts exceeded (Stream)"


def test_overdue_messages_are_requeued_on_a_full_server(queue: Queue) -> None:
    id = queue.add(ackTimeout=0.3)
    with queue.redis() as client:
        client.config_set("maxmemory", 1)
        try:
            queue.take()
            eventually(lambda: queue.ids("main") == [id])
        finally:
            client.config_set("maxmemory", 0)


def test_a_message_taken_by_another_consumer_gets_a_deadline(servers: Servers, tmp_path: Path) -> None:
    url = servers.valkey.url.removesuffix("/0") + "/9"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        client.xgroup_create(NAME, f"{NAME}_group", "0", mkstream=True)
        client.xadd(NAME, {"data": '{"id":"theirs","type":"a","payload":[]}'})
        client.xreadgroup(f"{NAME}_group", "another", {NAME: ">"})
    with forked_web(tmp_path, **environment(url, ACK_TIMEOUT_SECONDS="0.5")) as process:
        with promptly(5):
            eventually(lambda: Queue(process, url).ids("main") == ["theirs"])


def test_no_message_is_swept_while_an_older_service_holds_the_lock(queue: Queue) -> None:
    id = queue.add(ackTimeout=0.1)
    with queue.redis() as client:
        client.set("tested:overdue_requeue_lock", "1")
        queue.take()
        time.sleep(0.5)
        assert queue.ids("processing") == [id]
        client.delete("tested:overdue_requeue_lock")
    eventually(lambda: queue.ids("main") == [id])


@pytest.mark.slow
def test_a_killed_server_is_503_until_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    with Valkey(tmp_path / "valkey", port) as valkey, forked_web(tmp_path, **environment(valkey.url)) as process:
        queue = Queue(process, valkey.url)
        stream = Stream(process)
        id = queue.add(ackTimeout=2)
        queue.take()
        stream.until(lambda event: event["type"] == "dequeue")
        valkey.kill()
        for method, path in (
            ("GET", "/health"),
            ("GET", "/queue/message"),
            ("GET", "/queue/message?timeout=5"),
            ("GET", "/queue/status"),
            ("GET", "/queue/main/messages"),
            ("POST", "/queue/replay"),
            ("GET", "/queue/events?lastEventId=0-0"),
        ):
            with promptly(5):
                answer = queue.ask(method, path, b'{"messageIds":["a"]}' if method == "POST" else None)
            assert (answer.status, answer.body["error"]) == (503, "unavailable"), path
        time.sleep(2.5)  # the message's deadline passes
        with Valkey(tmp_path / "valkey", port):
            eventually(lambda: queue.get("/health").status == 200)
            with promptly(5):
                eventually(lambda: queue.ids("main") == [id])
            assert [event["type"] for event in stream.until(lambda event: event["type"] == "requeue")] == ["requeue"]
            stream.close()
            for said in (
                "Overdue requeue worker failed",
                "Overdue messages are requeued again",
                "No queue events",
                "Queue events flow again",
            ):
                eventually(lambda said=said: said in process.log)
                assert process.log.count(said) == 1
            assert "Traceback" not in process.log
