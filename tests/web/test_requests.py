"""Rules for requests of every route: unknown query parameters, HEAD, compression and caching."""

from __future__ import annotations

import asyncio
import gzip
import re
from email.message import Message
from http.client import HTTPConnection
from typing import Any
from urllib.request import Request, urlopen

import pytest
from starlette.requests import Request as StarletteRequest

from queue_manager.core.errors import MalformedBody
from queue_manager.web.http import requests
from queue_manager.web.http.errors import ApiError
from queue_manager.web.http.requests import read_body
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.web.credentials import KEYS, OPERATOR, VIEWER
from tests.web.queue_client import Queue, Stream, empty_queue
from tests.web.web_process import PAGES, Web

ENDLESS = {"/api/queue/events", "/api/jobs/events", "/api/overview/events"}
PUBLIC = {"/healthz", "/readyz", "/login", "/logout"}
KEY = {"X_API_KEY": OPERATOR}


@pytest.fixture
def queue(clean: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(clean, tmp_path_factory, QM_API_KEYS=KEYS, QM_HOOKS="true", QM_JOBS="true")


@pytest.fixture
def guarded(queue: Queue) -> Web:
    return queue.web


@pytest.fixture
def operations(guarded: Web) -> list[tuple[str, str, list[str]]]:
    """Method, path and query parameters of each operation that is described; no such id stands in every path."""
    paths = guarded.get("/openapi.json", **KEY).body["paths"]
    return [
        (
            method.upper(),
            re.sub(r"{.*?}", "0", path),
            [one["name"] for one in about.get("parameters", ()) if one["in"] == "query"],
        )
        for path, methods in paths.items()
        for method, about in methods.items()
    ]


# Query parameters


def test_every_operation_refuses_an_unknown_query_parameter_and_names_the_known_ones(
    guarded: Web, operations: list[tuple[str, str, list[str]]]
) -> None:
    assert len(operations) > 30
    for method, path, known in operations:
        if path in PUBLIC:  # monitors and links add parameters of their own
            assert "unknown query parameter" not in guarded.ask(method, f"{path}?no_such=1", **KEY).text
            continue
        for query in ("no_such=1", "no_such", "type[$ne]=x", "&".join([*(f"{name}=" for name in known), "no_such="])):
            answer = guarded.ask(method, f"{path}?{query}", **KEY)
            field = "type[$ne]" if "$ne" in query else "no_such"
            assert (answer.status, answer.body.get("field")) == (422, field), (method, path, answer.text)
            assert answer.body["error"] == "invalid"
            assert answer.body["message"].startswith(f"{field}: unknown query parameter; ")
            _, _, listed = answer.body["message"].partition("the known ones are ")
            assert sorted(listed.split(", ") if listed else []) == sorted(known)


def test_every_operation_accepts_its_described_query_parameters(
    guarded: Web, operations: list[tuple[str, str, list[str]]]
) -> None:
    asked = [(path, known) for method, path, known in operations if method == "GET" and path not in ENDLESS and known]
    assert len(asked) >= 6
    for path, known in asked:
        for name in known:
            assert "unknown query parameter" not in guarded.get(f"{path}?{name}=", **KEY).text
    for path in ENDLESS - {"/api/overview/events"}:
        with Stream(guarded, path, query="?lastEventId=", **KEY) as stream:
            assert stream.status == 200


def test_nothing_is_deleted_by_a_filter_that_does_not_exist(queue: Queue) -> None:
    ids = {queue.post("/queue/message", {"type": type}, **KEY).body["id"] for type in "ab"}
    answer = queue.ask("DELETE", "/queue/main/clear?type=a", **KEY)
    assert (answer.status, answer.body["field"]) == (422, "type")
    listed = queue.get("/queue/main/messages", **KEY).body["messages"]
    assert {message["id"] for message in listed} == ids


def test_a_missing_role_is_reported_before_wrong_parameters(guarded: Web) -> None:
    assert guarded.get("/api/queue/status?no_such=1").status == 401
    assert guarded.ask("DELETE", "/api/queue/main/clear?no_such=1", X_API_KEY=VIEWER).status == 403


def test_pages_keep_the_parameters_of_their_scripts(guarded: Web) -> None:
    for path in PAGES:
        assert guarded.get(f"{path}?state=due&account=a&name=x", **KEY).status == 200
    assert guarded.get("/static/style.css?1").status == 200


# HEAD


def answered(web: Web, method: str, path: str) -> tuple[int, dict[str, Any], bytes]:
    connection = HTTPConnection("127.0.0.1", web.port, timeout=30)
    try:
        connection.request(method, path, headers={"X-API-KEY": OPERATOR})
        answer = connection.getresponse()
        headers = {name: value for name, value in answer.getheaders() if name not in ("date", "transfer-encoding")}
        return answer.status, headers, answer.read() if method == "HEAD" else b""
    finally:
        connection.close()


def test_head_answers_as_get_does_without_a_body(guarded: Web, operations: list[tuple[str, str, list[str]]]) -> None:
    described = [path for method, path, _ in operations if method == "GET"]
    paths = {*described, *PAGES, "/openapi.json", "/static/style.css", "/static/none.css", "/none"}

    def check(path: str) -> int:
        status, headers, body = answered(guarded, "HEAD", path)
        of_get = answered(guarded, "GET", path)
        assert (status, body) == (of_get[0], b""), path
        assert headers.keys() == of_get[1].keys(), path
        assert headers["content-type"] == of_get[1]["content-type"], path
        return status

    for path in sorted(paths - {"/api/queue/message", "/readyz"}):
        check(path)
    for path in ("/healthz", "/metrics", "/", "/static/style.css", "/api/overview/events"):
        assert answered(guarded, "HEAD", path)[0] == 200
    eventually(lambda: check("/readyz") == 200)  # once all servers answer in time


def test_head_of_an_event_stream_ends_and_leaves_the_connection_usable(guarded: Web) -> None:
    before = len(guarded.log)
    connection = HTTPConnection("127.0.0.1", guarded.port, timeout=30)
    try:
        for path in (*sorted(ENDLESS), "/healthz"):
            connection.request("HEAD", path, headers={"X-API-KEY": OPERATOR})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
        assert "Exception" not in guarded.log[before:]
    finally:
        connection.close()


def test_head_takes_no_message_and_opens_no_session(queue: Queue) -> None:
    assert queue.post("/queue/message", {"type": "a"}, **KEY).status == 201
    assert answered(queue.web, "HEAD", "/api/queue/message?type=a")[0] == 405
    assert queue.get("/queue/status", **KEY).body["main"] == 1
    assert answered(queue.web, "HEAD", "/socket.io/?EIO=4&transport=polling")[0] != 200


def test_head_requires_a_key_and_is_not_in_the_description(guarded: Web) -> None:
    assert guarded.ask("HEAD", "/metrics").status == 401
    assert guarded.ask("HEAD", "/metrics?no_such=1", **KEY).status == 422
    assert guarded.ask("HEAD", "/healthz?no_such=1").status == 200
    paths = guarded.get("/openapi.json", **KEY).body["paths"]
    assert not [path for path, methods in paths.items() if "head" in methods]


# Bodies


def read(*parts: dict[str, Any]) -> bytes:
    """Read a body of at most one byte."""
    left = [{"type": "http.request", "more_body": True, **part} for part in parts]

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    return asyncio.run(read_body(StarletteRequest({"type": "http"}, receive), 1, field="body"))


def test_a_body_that_ends_early_is_malformed() -> None:
    with pytest.raises(MalformedBody, match="it ended early"):
        read({"body": b"{"}, {"type": "http.disconnect"})


def test_only_a_part_of_a_body_that_is_too_large_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_DISCARDED_BYTES", 1)
    with pytest.raises(ApiError, match="must have at most 1 bytes"):  # there is no fourth part
        read({"body": b"a"}, {"body": b"b"}, {"body": b"c"})


# Compression


def compressed(web: Web, path: str, accept: str = "gzip") -> tuple[Message, bytes]:
    """Return the headers and the body, as they are sent to a client that accepts compression."""
    url = f"http://127.0.0.1:{web.port}{path}"
    with urlopen(Request(url, headers={"X-API-KEY": OPERATOR, "Accept-Encoding": accept}), timeout=30) as answer:
        return answer.headers, answer.read()


@pytest.mark.parametrize(
    "path",
    ["/api/queue/main/messages", "/api/overview", "/openapi.json", "/metrics", "/messages", "/static/list.js"],
)
def test_long_responses_are_compressed_for_clients_that_accept_it(queue: Queue, path: str) -> None:
    for _ in range(20):
        assert queue.post("/queue/message", {"type": "a", "payload": "word " * 10}, **KEY).status == 201
    headers, body = compressed(queue.web, path)
    plain = queue.web.get(path, **KEY)
    assert headers["content-encoding"] == "gzip"
    assert "accept-encoding" in headers["vary"].lower()
    assert int(headers["content-length"]) == len(body) < len(plain.text) / 2
    assert len(gzip.decompress(body)) == pytest.approx(len(plain.text.encode()), rel=0.02)  # counts and times differ
    assert plain.headers["content-encoding"] is None


def test_a_client_that_accepts_only_other_encodings_gets_none(queue: Queue) -> None:
    headers, _ = compressed(queue.web, "/messages", "identity")
    assert headers["content-encoding"] is None
    assert "accept-encoding" in headers["vary"].lower()


def test_short_responses_streams_and_message_traffic_are_not_compressed(queue: Queue) -> None:
    for _ in range(2):
        assert queue.post("/queue/message", {"type": "a", "payload": "word " * 1_000}, **KEY).status == 201
    for path in ("/healthz", "/api/queue/main/export", "/api/queue/main/messages/search?search=word"):
        assert compressed(queue.web, path)[0]["content-encoding"] is None, path
    headers, body = compressed(queue.web, "/api/queue/message")
    assert (headers["content-encoding"], len(body) > 5_000) == (None, True)
    with Stream(queue.web, "/api/overview/events", X_API_KEY=OPERATOR, Accept_Encoding="gzip") as stream:
        assert next(stream.events())[0] == "overview"


# What browsers keep


@pytest.mark.parametrize(
    "path", ["/api/queue/main/messages", "/api/jobs/status", "/api/overview", "/docs", "/nonsense"]
)
def test_no_cache_stores_a_response(guarded: Web, path: str) -> None:
    assert guarded.get(path).headers["cache-control"] == "no-store"
    assert guarded.get(path, **KEY).headers["cache-control"] == "no-store"


def test_static_files_are_revalidated_before_each_use(guarded: Web) -> None:
    for path in ("/static/api.js", "/static/style.css"):
        first = guarded.get(path)
        assert (first.status, first.headers["cache-control"]) == (200, "no-cache")
        again = guarded.get(path, If_None_Match=first.headers["etag"])
        assert (again.status, again.headers["cache-control"], again.text) == (304, "no-cache", "")
        assert guarded.get(path, If_None_Match='"of-an-older-version"').status == 200
