"""The event stream of messages: every event once, in order, across reconnects, with slow clients."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from typing import Any

import pytest
import redis

from queue_manager.web.live.event_feed import SEND_TIMEOUT
from queue_manager.web.routes.messages.events import STREAM_READ_TIMEOUT
from tests.eventually import eventually
from tests.pace import paced, promptly
from tests.real_servers import Servers
from tests.web.queue_client import DATABASE, Queue, Stream, empty_queue, size_of_response


@pytest.fixture
def queue(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    heard(empty_queue(servers, tmp_path_factory))  # the process may still have to send what another test did
    return empty_queue(servers, tmp_path_factory)


def heard(queue: Queue) -> str:
    """Return the id of the last event, after the process has read it."""
    with Stream(queue.web) as stream:
        stream.until(is_about(queue.add()))
        last = stream.last
    assert last is not None
    # A new listener reads what it missed by itself, and so may be ahead of the reader of the process.
    eventually(lambda: first_id(queue) == last)
    return last


def first_id(queue: Queue) -> str:
    """Return the id after which a client that comes now begins."""
    with Stream(queue.web) as stream:
        return next(stream.blocks())["id"]


def waiting_readers(client: redis.Redis) -> list[str]:
    """Return the ids of the connections that read streams of this database, if all of them wait for entries."""
    clients: Any = client.client_list()
    readers = [one for one in clients if one["cmd"] == "xread" and one["db"] == str(DATABASE)]
    return [one["id"] for one in readers] if all("b" in one["flags"] for one in readers) else []


def is_about(id: str, kind: str = "enqueue") -> Callable[[Any], bool]:
    return lambda event: event["type"] == kind and id in event["payload"].get("ids", [])


def ids_of(events: list[Any]) -> list[str]:
    return [id for event in events for id in event["payload"].get("ids", [])]


def test_each_operation_sends_one_event(queue: Queue) -> None:
    with Stream(queue.web) as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert stream.headers["cache-control"] == "no-store"
        next(stream.blocks())
        id = queue.add()
        token = queue.take()["lock_token"]
        queue.put(f"/queue/message/{id}/touch", {"lock_token": token})
        queue.post("/queue/ack", {"id": id, "lock_token": token})
        events = stream.until(is_about(id, "acknowledge"))
    assert [event["type"] for event in events] == ["enqueue", "dequeue", "touch", "acknowledge"]
    assert all(event["timestamp"] > 0 and event["payload"]["ids"] == [id] for event in events)


def test_events_of_the_stream_extend_those_of_the_server_byte_for_byte(queue: Queue) -> None:
    with Stream(queue.web) as stream:
        queue.add()
        block = next(block for block in stream.blocks() if "data" in block)
    with queue.redis() as client:
        ((id, fields),) = client.xrevrange("tested:events", count=1)
    assert (block["id"], block["event"]) == (id.decode(), "queue-update")
    assert block["data"].startswith(f'{fields[b"event"].decode()[:-1]},"messages":')


def test_an_event_contains_its_messages_and_the_counts_of_each_state(queue: Queue) -> None:
    with Stream(queue.web) as stream:
        id = queue.add(payload={"digits": 12345678901234567890})
        (added,) = stream.until(is_about(id, "enqueue"))
        queue.take()
        taken = stream.until(is_about(id, "dequeue"))[-1]
        queue.delete(f"/queue/message/{id}")
        deleted = stream.until(is_about(id, "delete"))[-1]
    (message,) = added["messages"]
    assert message.pop("place") == "main"
    assert (message["id"], message["payload"], message["attempt_count"]) == (id, {"digits": 12345678901234567890}, 0)
    assert [one["place"] for one in taken["messages"]] == ["processing"]
    assert deleted["messages"] == []
    counts = {"main": 0, "processing": 0, "dead": 0, "acknowledged": 0, "archived": 0}
    assert [event["counts"] for event in (added, taken, deleted)] == [
        counts | {"main": 1},
        counts | {"processing": 1},
        counts,
    ]


def test_an_event_about_many_or_large_messages_does_not_contain_them(queue: Queue) -> None:
    with Stream(queue.web) as stream:
        queue.post("/queue/batch", [{"type": "mail"}] * 101)
        many = next(block for block in stream.blocks() if "data" in block)
        large = queue.add(payload="x" * 70_000)
        (added,) = stream.until(is_about(large, "enqueue"))
    assert "messages" not in json.loads(many["data"])
    assert "messages" not in added
    assert added["counts"]["main"] == 102


def test_a_foreign_event_does_not_delay_others(queue: Queue) -> None:
    with Stream(queue.web) as stream:
        blocks = stream.blocks()
        next(blocks)
        with queue.redis() as client:
            client.xadd("tested:events", {"event": "by hand"})
        id = queue.add()
        told = [next(block["data"] for block in blocks if "data" in block) for _ in range(2)]
    assert told[0] == "by hand"
    assert id in told[1]


def test_a_reconnecting_client_gets_missed_events_once(queue: Queue) -> None:
    last = heard(queue)
    missed = [queue.add() for _ in range(20)]
    for begin in ({"last": last}, {"query": f"?lastEventId={last}"}):
        with Stream(queue.web, **begin) as again:
            live = queue.add()
            events = again.until(is_about(live))
        assert ids_of(events)[:20] == missed
        assert [message["id"] for event in events for message in event["messages"]] == ids_of(events)
        assert events[-1]["counts"]["main"] >= 22


def test_the_header_takes_precedence_over_the_query_of_the_first_request(queue: Queue) -> None:
    last = heard(queue)
    missed = queue.add()
    with Stream(queue.web, last=last, query="?lastEventId=0-0") as again:
        assert ids_of(again.until(is_about(missed))) == [missed]


def test_a_client_without_events_can_reconnect_too(queue: Queue) -> None:
    heard(queue)
    last = first_id(queue)
    missed = queue.add()
    with Stream(queue.web, last=last) as again:
        assert ids_of(again.until(is_about(missed))) == [missed]


def test_a_client_that_reconnects_often_misses_no_event_of_many_messages(queue: Queue) -> None:
    last, seen = heard(queue), list[str]()
    with ThreadPoolExecutor(4) as threads:
        added = [threads.submit(queue.add) for _ in range(400)]
        while len(seen) < 400:
            with Stream(queue.web, last=last) as stream:
                few = islice(stream.events(), min(37, 400 - len(seen)))
                seen += ids_of([event for _, event in few])
                assert stream.last is not None
                last = stream.last
    assert len(seen) == 400
    assert set(seen) == {future.result() for future in added}


def test_a_client_whose_events_are_no_longer_stored_gets_a_gap(queue: Queue) -> None:
    kept = queue.add()
    with Stream(queue.web, last="1-1") as stream:
        events = stream.events()
        name, data = next(events)
        assert (name, list(data)) == ("reset", ["message"])
        name, data = next(events)
        assert (name, data["payload"]["ids"]) == ("queue-update", [kept])


def test_a_client_of_a_server_that_lost_its_data_gets_a_gap(queue: Queue) -> None:
    queue.add()
    with Stream(queue.web, last="99999999999999-0") as stream:
        events = stream.events()
        assert next(events)[0] == "reset"
        live = queue.add()
        assert next(events)[1]["payload"]["ids"] == [live]


def test_connected_clients_get_a_gap_if_the_server_restarts_without_its_data(queue: Queue) -> None:
    with Stream(queue.web) as stream, queue.redis() as client:
        stream.until(is_about(queue.add()))
        readers = eventually(lambda: waiting_readers(client))
        with client.pipeline() as pipe:
            pipe.flushdb()
            pipe.xadd("tested:events", {"event": '{"type": "enqueue", "payload": {"ids": []}}'})
            for id in readers:
                pipe.client_kill_filter(_id=id)
            pipe.execute()
        assert list(stream.events()) == []  # it ends
        with Stream(queue.web, last=stream.last) as again:
            assert next(again.events())[0] == "reset"


@pytest.mark.parametrize("is_idle", [True, False])
def test_connected_clients_get_a_gap_if_the_running_server_loses_its_data(queue: Queue, is_idle: bool) -> None:
    with Stream(queue.web) as stream, queue.redis() as client:
        stream.until(is_about(queue.add()))
        eventually(lambda: waiting_readers(client))
        client.flushdb()
        if not is_idle:
            queue.add()
        with promptly(STREAM_READ_TIMEOUT + 1):
            assert list(stream.events()) == []  # it ends
        with Stream(queue.web, last=stream.last) as again:
            assert next(again.events())[0] == "reset"


def test_trimmed_events_are_a_gap(queue: Queue) -> None:
    seen = heard(queue)
    for _ in range(3):
        queue.add()
    with queue.redis() as client:
        client.xtrim("tested:events", maxlen=1, approximate=False)
    for last in (seen, "0-0"):
        with Stream(queue.web, last=last) as again:
            assert next(again.events())[0] == "reset"


@pytest.mark.parametrize(
    "last", ["nonsense", "1", "1-", "-1", "1-1-1", "1-x", "-1-1", f"{2**64}-0", "9" * 5_000, "1_0-0"]
)
def test_a_malformed_id_is_422(last: str, queue: Queue) -> None:
    for answer in (
        queue.get("/queue/events", Last_Event_ID=last),
        queue.get(f"/queue/events?lastEventId={last}"),
    ):
        assert (answer.status, answer.body["field"]) == (422, "Last-Event-ID")


@pytest.mark.processes
def test_event_stream_sends_a_ping_every_15_seconds(queue: Queue) -> None:
    with Stream(queue.web) as stream:
        blocks = stream.blocks()
        began = time.monotonic()
        next(blocks)
        with promptly(17):
            assert next(blocks) == {"event": "ping", "data": ""}
        assert time.monotonic() - began > 14


def test_each_of_40_changes_reaches_50_pages_before_the_next(queue: Queue, figure: Callable[[str], None]) -> None:
    took = []
    with ExitStack() as stack:
        streams = [stack.enter_context(Stream(queue.web)) for _ in range(50)]
        events = [stream.events() for stream in streams]
        # A read that is not ended by its change ends after this time: one per change would take four times as long.
        with promptly(10 * STREAM_READ_TIMEOUT):
            for _ in range(40):
                began = time.monotonic()
                id = queue.add()
                for of_one in events:
                    assert id in next(of_one)[1]["payload"]["ids"]
                    took.append(time.monotonic() - began)
    took.sort()
    figure(f"queue: an event reached 50 pages in {took[1000] * 1000:.0f} ms (p50), {took[1979] * 1000:.0f} ms (p99)")


@pytest.mark.slow
def test_a_client_that_does_not_read_is_disconnected_and_delays_no_other(queue: Queue) -> None:
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", queue.web.port))
    slow.sendall(b"GET /api/queue/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    event = json.dumps({"type": "enqueue", "timestamp": 0, "payload": {"ids": ["x" * 100_000]}})
    took = []
    with slow, Stream(queue.web) as quick, queue.redis() as client, paced() as pace:
        next(quick.blocks())
        for _ in range(300):
            client.xadd("tested:events", {"event": event})
            next(quick.events())
            took.append(queue.get("/queue/config").took)
        # None waited for the slow one, nor all of them together for as long.
        assert sum(took) < pace.allowed(SEND_TIMEOUT)
        assert size_of_response(slow) < 20_000_000  # it was cut off in the middle
