"""Access to the queue over HTTP, and that no input causes an internal error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from tests.real_servers import Servers
from tests.web.queue_client import Queue
from tests.web.web_process import SECRET, Web, answered, forked_web, shared_web

ROUTES = [
    ("POST", "/queue/message"),
    ("POST", "/queue/batch"),
    ("GET", "/queue/message"),
    ("POST", "/queue/ack"),
    ("POST", "/queue/message/any/nack"),
    ("PUT", "/queue/message/any/touch"),
    ("PUT", "/queue/message/any"),
    ("DELETE", "/queue/message/any"),
    ("GET", "/queue/main/messages"),
    ("POST", "/queue/messages/delete"),
    ("POST", "/queue/move"),
    ("POST", "/queue/replay"),
    ("POST", "/queue/pause"),
    ("POST", "/queue/resume"),
    ("DELETE", "/queue/clear"),
    ("DELETE", "/queue/main/clear"),
    ("GET", "/queue/status"),
    ("GET", "/queue/metrics"),
    ("GET", "/queue/config"),
    ("GET", "/health"),
    ("GET", "/queue/events"),
]


@pytest.fixture(scope="session")
def without(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return shared_web(tmp_path_factory)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_the_flag_there_is_no_queue(method: str, path: str, without: Web) -> None:
    answer = Queue(without, "").ask(method, path)
    assert (answer.status, answer.body["error"]) == (404, "not found")


def test_our_own_pages_may_use_the_queue(queue: Queue) -> None:
    assert queue.get("/queue/status", Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/queue/message", {"GET", "POST"}),
        ("POST", "/queue/message/some-id", {"GET", "PUT", "DELETE"}),
        ("PATCH", "/queue/main/clear", {"DELETE"}),
    ],
)
def test_a_wrong_method_gets_all_methods_of_the_path(method: str, path: str, allowed: set[str], queue: Queue) -> None:
    answer = queue.ask(method, path)
    assert answer.status == 405
    assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == allowed


def test_an_unknown_method_is_405(queue: Queue) -> None:
    answer = queue.ask("PATCH", "/queue/message")
    assert (answer.status, answer.body["error"]) == (405, "method not allowed")


@pytest.mark.parametrize("id", ["messages", "count", "events", "failed", "processing", "clear"])
def test_a_message_may_be_named_like_a_path(queue: Queue, id: str) -> None:
    path = f"/queue/message/{quote(id, safe='')}"
    queue.add(id=id)
    assert queue.get(path).body["id"] == id
    assert queue.put(path, {"priority": 3}).body["data"]["priority"] == 3
    token = queue.take()["lock_token"]
    assert queue.put(f"{path}/touch", {"lock_token": token}).status == 200
    assert queue.post(f"{path}/nack", {"lock_token": token}).status == 200
    assert queue.delete(path).status == 200


def test_a_foreign_host_name_is_refused_although_there_is_a_secret(servers: Servers, tmp_path: Path) -> None:
    with forked_web(tmp_path, QM_MESSAGE_QUEUE="true", SOCKETIO_TOKEN_SECRET=SECRET) as process:
        assert process.get("/api/queue/status", Host="evil.example").status == 421


def test_a_full_server_refuses_new_messages_and_delivers_existing_ones(queue: Queue) -> None:
    id = queue.add()
    with queue.redis() as client:
        client.config_set("maxmemory", 1)
        try:
            full = queue.post("/queue/message", {"type": "a"})
            taken = queue.take()
            acked = queue.post("/queue/ack", {"id": id, "lock_token": taken["lock_token"]})
        finally:
            client.config_set("maxmemory", 0)
    assert (full.status, full.body["error"], full.headers["retry-after"]) == (503, "queue full", "5")
    assert acked.status == 200


def test_a_server_that_refuses_is_503(queue: Queue) -> None:
    with queue.redis() as client:
        client.set("tested", "no stream")
    answer = queue.get("/queue/message")
    assert (answer.status, answer.body["error"]) == (503, "unavailable")


# Nothing is an internal error

NAMES = [
    *("id", "type", "payload", "priority", "ackTimeout", "maxAttempts", "lock_token", "errorReason", "extend_seconds"),
    *("messageIds", "messages", "fromQueue", "toQueue", "filter", "startDate", "search", "custom_ack_timeout"),
]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["main", "dead", "processing", "\ud800", "\x00", 10**400, -(10**30), 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(), inner, max_size=4),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(NAMES), values, max_size=5).map(json.dumps).map(str.encode)
lists = st.lists(values, max_size=3).map(json.dumps).map(str.encode)
bodies = st.binary(max_size=60) | objects | lists | st.sampled_from([b'{"id":' + b"9" * 5_000 + b"}", b"[" * 50_000])
parts = st.sampled_from(["queue", "message", "main", "dead", "messages", "nack", "touch", "clear", "batch"])
paths = st.lists(parts | st.text(max_size=8).map(lambda text: quote(text, safe="", errors="replace")), max_size=4)
names = st.sampled_from(
    [
        *("timeout", "ackTimeout", "type", "consumerId", "queueType", "page", "limit", "sortBy", "sortOrder", "cursor"),
        *("filterType", "filterPriority", "filterAttempts", "startDate", "endDate", "search"),
    ]
)
odd = st.sampled_from(["0", "-1", "1e400", "nan", "9" * 4_400, "%00", "%ff", "%ED%A0%80", "1-1/1", "1" * 9, "0.01"])
queries = st.lists(
    st.tuples(names, odd | st.text(max_size=8).map(lambda text: quote(text, errors="replace"))).map("=".join),
    max_size=3,
).map("&".join)


@pytest.mark.slow
@hypothesis(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(ROUTES[:-1]) | st.tuples(st.sampled_from(["GET", "POST", "PUT", "DELETE"]), paths.map("/".join)),
    queries,
    bodies,
)
def test_no_input_causes_an_internal_error(queue: Queue, route: tuple[str, str], query: str, body: bytes) -> None:
    method, path = route
    path = path if path.startswith("/") else f"/{path}"
    if path == "/queue/events" or (path == "/queue/message" and method == "GET"):
        query = query.replace("timeout=", "t=")  # it would wait
    answer = answered(lambda: queue.ask(method, f"{path}?{query}" if query else path, body))
    assert answer.status < 500, answer.text
    if answer.status >= 400:
        said: Any = answer.body
        assert {"error", "message"} <= said.keys() <= {"error", "message", "field"}
