"""How long the clients repeat requests: for `retry_for` seconds after the first error since the last success."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from itertools import chain, repeat
from math import inf
from socketserver import StreamRequestHandler
from typing import NoReturn

import httpx2
import pytest

from queue_manager.client import ClientError, ReceivedMessage, StoredMessage
from queue_manager.client.errors import FIRST_RETRY_DELAY, MAX_SERVER_DELAY, Retries
from queue_manager.client.exchanges import EventPosition, Exchange
from queue_manager.client.jobs import JobClient
from tests.client.clients import connected, url_of

RETRY_FOR = 30.0  # seconds, as by default


class HandClock:
    """Replaces the module `time` of the retries: time passes only when a test or its server lets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr("queue_manager.client.errors.time", clock)
    return clock


class Server:
    """Handles each request as the next of its turns says, and closes the connection."""

    def __init__(self, clock: HandClock, turns: tuple[tuple[float, str], ...]) -> None:
        self.clock, self.turns = clock, iter(turns)
        self.requests = 0
        self.url = ""

    def respond(self) -> bytes:
        self.requests += 1
        seconds, response = next(self.turns, (inf, ""))  # a client that requests more than expected runs out of time
        self.clock.now += seconds
        return response.encode()


@contextmanager
def responding(clock: HandClock, *turns: tuple[float, str]) -> Iterator[Server]:
    """Run a server; each turn is how many seconds a request takes, and the response: by default none."""
    server = Server(clock, turns)

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(server.respond())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        server.url = url_of(listener.server_port)
        threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        listener.shutdown()


def response(content_type: str, body: str, *headers: str) -> str:
    return "\r\n".join(["HTTP/1.1 200 OK", f"content-type: {content_type}", *headers, "connection: close", "", body])


def ended(body: str) -> str:
    return response("text/event-stream", body)


def lost(body: str) -> str:
    """Return a stream that breaks off: it lacks the last chunk."""
    return response("text/event-stream", f"{len(body):x}\r\n{body}\r\n", "transfer-encoding: chunked")


LOST = ""
UNAVAILABLE = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n"
STORED = {"id": "1", "type": "mail", "payload": None, "priority": 0, "created_at": "2026-01-01T00:00:00Z"}
MESSAGE = response("application/json", json.dumps({**STORED, "attempt_count": 1}))
CREATED = "2026-01-01T00:00:00Z"
JOB = {"_id": "1", "name": "mail", "arguments": [], "state": "pending", "due": CREATED, "priority": 0, "attempts": 0}
PENDING = response(
    "application/json", json.dumps({"job": {**JOB, "created": CREATED, "updated": CREATED, "history": []}})
)
EVENT = "retry: 1\nid: 7\ndata: {}\n\n"
PING = ": ping\n\n"  # a comment, of which the client learns nothing


# Waits


def test_the_waits_of_a_request_end_after_its_first_error(clock: HandClock) -> None:
    retries, error = Retries(RETRY_FOR), ClientError(None, "no response", "lost")
    clock.now += 60
    retries.delay_after(error)
    clock.now += RETRY_FOR - 1
    retries.delay_after(error)
    clock.now += 1
    with pytest.raises(ClientError):
        retries.delay_after(error)


def test_the_waits_grow_and_restart_after_a_success(clock: HandClock) -> None:
    retries, error = Retries(RETRY_FOR), ClientError(None, "no response", "lost")
    delays = [retries.delay_after(error) for _ in range(5)]
    assert delays == sorted(delays)
    assert delays[-1] > 4 * FIRST_RETRY_DELAY
    clock.now += 60
    retries.reset()
    assert retries.delay_after(error) <= FIRST_RETRY_DELAY


def test_a_worker_that_waits_for_its_server_logs_it_once(clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
    retries, error = Retries(inf), ClientError(None, "unreachable", "certificate verify failed")
    for _ in range(2):
        for _ in range(3):
            retries.delay_after(error)
        retries.reset()
    expected = "The request is repeated, retry_for=inf: unreachable: certificate verify failed"
    assert caplog.messages == [expected] * 2


def test_no_request_is_repeated_with_a_retry_time_of_zero(clock: HandClock) -> None:
    with pytest.raises(ClientError):
        Retries(0).delay_after(ClientError(None, "no response", "lost"))


@pytest.mark.parametrize("seconds", ["301", pytest.param("9" * 400, id="huge")])
def test_a_response_does_not_make_a_client_wait_for_more_than_minutes(clock: HandClock, seconds: str) -> None:
    error = ClientError.of_response(httpx2.Response(503, headers={"retry-after": seconds}))
    assert Retries(inf).delay_after(error) == MAX_SERVER_DELAY


@pytest.mark.parametrize("value", ["inf", "nan", "1e400", "-1", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_retry_after_in_another_form_is_ignored(clock: HandClock, value: str) -> None:
    error = ClientError.of_response(httpx2.Response(503, headers={"retry-after": value}))
    assert 0 < Retries(inf).delay_after(error) <= FIRST_RETRY_DELAY


@pytest.mark.parametrize(
    ("milliseconds", "delay"), [(1500, 1.5), (-1, 0), pytest.param(10**400, MAX_SERVER_DELAY, id="huge")]
)
def test_the_delay_that_an_event_sets_is_bounded(milliseconds: int, delay: float) -> None:
    position = EventPosition("/api/jobs/events", None, RETRY_FOR)
    position.advance(httpx2.ServerSentEvent(retry=milliseconds))
    assert position.retry_delay == delay


def test_a_ping_of_a_new_connection_keeps_the_position() -> None:
    position = EventPosition("/api/jobs/events", "7", RETRY_FOR)
    position.advance(httpx2.ServerSentEvent())
    assert position.headers == {"Last-Event-ID": "7"}


# Heartbeats


def received(http: httpx2.Client) -> ReceivedMessage:
    """Return a message with an ack timeout of 30 s."""
    received_at = datetime(2026, 1, 1, tzinfo=UTC)
    fields = StoredMessage(
        id="1",
        type="mail",
        payload=None,
        priority=0,
        created_at=received_at,
        attempt_count=1,
        dequeued_at=received_at,
        deadline_at=received_at + timedelta(seconds=30),
    )
    return ReceivedMessage(http, RETRY_FOR, fields, None)


@pytest.fixture
def beat(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange[float | None]]:
    """The heartbeat of a message with an ack timeout of 30 s."""
    monkeypatch.setattr("queue_manager.client.received_messages.time", clock)
    with httpx2.Client(base_url="http://127.0.0.1", timeout=60) as http:
        yield received(http)._beat()


def test_a_lost_heartbeat_leaves_time_for_another(beat: Exchange[float | None], clock: HandClock) -> None:
    touch = next(beat)
    assert isinstance(touch, httpx2.Request)
    assert touch.extensions["timeout"] == dict.fromkeys(("connect", "read", "write", "pool"), 10)
    clock.now += 10
    with pytest.raises(StopIteration) as end:
        beat.send(httpx2.ReadTimeout("timed out", request=touch))
    assert end.value.value == 0


@pytest.mark.parametrize("status", [200, 401, 403, 429, 500, 503])
def test_heartbeats_go_on_after_an_error_that_does_not_concern_the_lock(
    status: int, beat: Exchange[float | None], clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    next(beat)
    clock.now += 3
    with pytest.raises(StopIteration) as end:
        beat.send(httpx2.Response(status, text="a page", request=httpx2.Request("PUT", "http://127.0.0.1")))
    assert end.value.value == 7
    [warning] = caplog.messages
    assert warning.startswith(f"The message 1 could not be touched: {status} ")


@pytest.mark.parametrize("status", [404, 409])
def test_heartbeats_end_when_the_lock_is_lost(
    status: int, beat: Exchange[float | None], caplog: pytest.LogCaptureFixture
) -> None:
    next(beat)
    with pytest.raises(StopIteration) as end:
        beat.send(httpx2.Response(status, json={"error": "LOCK_LOST", "message": "requeued"}))
    assert end.value.value is None
    assert caplog.messages == [f"The lock of the message 1 was lost: {status} LOCK_LOST: requeued"]


def test_an_interrupted_block_does_not_wait_for_its_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_manager.client.received_messages.INTERRUPTED_TIMEOUT", 0.2)
    intervals = chain([0.0], repeat(60.0))  # seconds; the first one comes at once
    monkeypatch.setattr(ReceivedMessage, "_heartbeat_interval", property(lambda _: next(intervals)))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        httpx2.Client(base_url=url_of(server.getsockname()[1]), timeout=60) as http,
    ):
        server.settimeout(30)
        message = received(http)
        sent = list[socket.socket]()

        def interrupt() -> NoReturn:
            with message:
                sent.append(server.accept()[0])
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupt()
        with sent[0] as touch:
            assert message._heartbeat.is_alive()
            touch.sendall(b"HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n")
            message._heartbeat.join()


# Long polls


def test_a_poll_that_is_lost_after_a_long_wait_is_repeated(kind: str, clock: HandClock) -> None:
    turns = (60, LOST), (0, UNAVAILABLE), (25, MESSAGE), (60, LOST), (0, MESSAGE)
    with responding(clock, *turns) as server, connected(kind, server.url, retry_for=RETRY_FOR) as client:
        with closing(client.messages.receive()) as messages:
            assert [next(messages).id, next(messages).id] == ["1", "1"]


def test_a_poll_is_repeated_until_the_time_after_its_first_error_is_over(kind: str, clock: HandClock) -> None:
    turns = (60, LOST), (RETRY_FOR - 1, UNAVAILABLE), (1, LOST), (0, MESSAGE)
    with responding(clock, *turns) as server, connected(kind, server.url, retry_for=RETRY_FOR) as client:
        with pytest.raises(ClientError, match="no response"):
            client.messages.dequeue(55)
        assert server.requests == 3


# Waiting for a job


def test_waiting_for_a_job_ends_in_time_although_the_server_is_unavailable(
    kind: str, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_manager.client.jobs.time", clock)
    turns = (0, PENDING), (30, LOST), (30, UNAVAILABLE)
    with responding(clock, *turns) as server, connected(kind, server.url, retry_for=inf) as client:
        with pytest.raises(TimeoutError, match="not finished after 50 s; the last request failed: 503"):
            client.jobs.wait("1", timeout=50)
        assert server.requests == 3


def test_waiting_for_a_job_ends_after_a_long_outage_of_the_server(
    kind: str, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_manager.client.jobs.time", clock)
    turns = (0, LOST), (RETRY_FOR - 1, PENDING), (0, LOST), (RETRY_FOR, LOST)
    with responding(clock, *turns) as server, connected(kind, server.url, retry_for=RETRY_FOR) as client:
        with pytest.raises(ClientError, match="no response"):
            client.jobs.wait("1")
        assert server.requests == 4


def test_a_request_for_the_state_of_a_job_lasts_no_longer_than_the_wait(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_manager.client.jobs.time", clock)
    with httpx2.Client(base_url="http://127.0.0.1", timeout=60) as http:
        request = next(JobClient.wait(JobClient(http, RETRY_FOR), "1", timeout=5))
    assert isinstance(request, httpx2.Request)
    assert request.extensions["timeout"] == dict.fromkeys(("connect", "read", "write", "pool"), 5)


# Events


@pytest.mark.parametrize("stream", [ended, lost])
def test_events_continue_after_an_outage_although_the_last_one_is_long_ago(
    stream: Callable[[str], str], kind: str, clock: HandClock
) -> None:
    turns = (0, stream(EVENT)), (0, LOST), (RETRY_FOR - 1, UNAVAILABLE), (0, stream(EVENT))
    with responding(clock, *turns) as server, connected(kind, server.url, retry_for=RETRY_FOR) as client:
        with closing(client.jobs.events()) as events:
            next(events)
            clock.now += 3600
            assert next(events).id == "7"


def test_a_stream_without_events_separates_two_outages(kind: str, clock: HandClock) -> None:
    outage = (0, LOST), (RETRY_FOR - 1, UNAVAILABLE)
    turns = *outage, (0, lost(PING)), *outage, (0, ended(EVENT))
    with responding(clock, *turns) as server, connected(kind, server.url, retry_for=RETRY_FOR) as client:
        with closing(client.jobs.events()) as events:
            assert next(events).id == "7"


def test_events_end_when_the_time_after_the_first_error_is_over(kind: str, clock: HandClock) -> None:
    turns = (0, lost(EVENT)), (RETRY_FOR - 1, UNAVAILABLE), (1, LOST), (0, ended(EVENT))
    with responding(clock, *turns) as server, connected(kind, server.url, retry_for=RETRY_FOR) as client:
        with closing(client.jobs.events()) as events:
            next(events)
            clock.now += 3600
            with pytest.raises(ClientError, match="no response"):
                next(events)
        assert server.requests == 3


@pytest.mark.slow
def test_a_stream_that_breaks_off_at_once_is_not_requested_without_a_pause(kind: str, clock: HandClock) -> None:
    turns = (0, lost(PING)), (0, lost(PING)), (0, ended(EVENT))
    with responding(clock, *turns) as server, connected(kind, server.url, retry_for=RETRY_FOR) as client:
        with closing(client.jobs.events()) as events:
            began = time.monotonic()
            assert next(events).id == "7"
            assert time.monotonic() - began >= 2


def test_a_response_that_is_not_an_event_stream_is_not_requested_again(kind: str, clock: HandClock) -> None:
    page = response("text/html", "<html>Welcome</html>")
    with responding(clock, (0, page)) as server, connected(kind, server.url, retry_for=RETRY_FOR) as client:
        with pytest.raises(ClientError) as caught:
            next(client.jobs.events())
        assert (caught.value.status, caught.value.error) == (200, "invalid response")
        assert server.requests == 1


def test_an_event_that_is_not_json_ends_the_stream_with_an_error(kind: str, clock: HandClock) -> None:
    turns = (0, ended(f"{EVENT}data: <html>\n\n")), (0, ended(EVENT))
    with responding(clock, *turns) as server, connected(kind, server.url, retry_for=RETRY_FOR) as client:
        with closing(client.jobs.events()) as events:
            next(events)
            with pytest.raises(ClientError, match="/api/jobs/events sent an event that is not JSON") as caught:
                next(events)
        assert (caught.value.status, caught.value.error) == (200, "invalid response")
        assert server.requests == 1
