"""The configurations of nginx and Caddy: TLS, sessions, live events, WebSocket, long polls and large bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest
import socketio

from tests.deployment.installation import run
from tests.deployment.programs import program
from tests.deployment.proxies import CADDY, Proxy, proxy
from tests.real_servers import Servers
from tests.web.credentials import KEYS, OPERATOR, UNKNOWN
from tests.web.listener import Listener
from tests.web.queue_client import DATABASE, environment
from tests.web.web_process import web

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(240)]

KEY = {"X_API_KEY": OPERATOR}
MAX_PAYLOAD_BYTES = 2 * 1024 * 1024  # more than nginx accepts by default


@pytest.fixture(
    scope="module",
    params=[(name, prefix) for name in ("nginx", "caddy") for prefix in ("", "/queue-manager")],
    ids=lambda param: f"{param[0]}{param[1].replace('/', '-')}",
)
def site(request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    name, prefix = request.param
    directory = tmp_path_factory.mktemp(name)
    url = servers.valkey.url.removesuffix("/0") + f"/{DATABASE}"
    env = environment(
        url,
        QUEUE_NAME=directory.name,
        QUEUE_MAX_PAYLOAD_BYTES=str(MAX_PAYLOAD_BYTES),
        QM_API_KEYS=KEYS,
        QM_WEB_PREFIX=prefix,
    )
    with web(directory, **env) as process, proxy(name, process, prefix, directory) as started:
        yield started


def test_the_caddyfile_is_valid_as_it_is() -> None:
    run(program("caddy", package="caddy"), "validate", "--config", CADDY)


def test_people_log_in_over_tls(site: Proxy) -> None:
    answer = site.ask("POST", "/login", f"key={OPERATOR}&next=/messages", Origin=f"https://localhost:{site.port}")
    assert answer.status == HTTPStatus.SEE_OTHER
    assert answer.headers["location"] == f"{site.prefix}/messages"
    cookie = answer.headers["set-cookie"]
    assert "; Secure" in cookie
    page = site.ask("GET", "/messages", Cookie=cookie.partition(";")[0], Accept="text/html")
    assert (page.status, "hand" in page.text) == (HTTPStatus.OK, True)


def test_events_are_passed_on_while_the_stream_is_open(site: Proxy) -> None:
    with site.response("GET", "/api/queue/events", **KEY) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for number in range(3):
            id = add(site, f"mail-{number}")
            lines = iter(stream.readline, b"")
            assert any(line.startswith(b"data:") and id.encode() in line for line in lines)


def test_a_long_poll_gets_a_later_message_or_the_answer_of_the_process(site: Proxy) -> None:
    with ThreadPoolExecutor() as pool:
        waits = [
            pool.submit(site.ask, "GET", f"/api/queue/message?timeout=60&type={type}", **KEY)
            for type in ("added-later", "never-added")
        ]
        id = add(site, "added-later")
        added, never = (wait.result().body for wait in waits)
    assert added["id"] == id
    assert {*never} == {"error", "message"}


def test_a_socketio_client_receives_events_over_a_websocket(site: Proxy, servers: Servers) -> None:
    path = f"{site.prefix}/socket.io/"
    with Listener(site.port, {"token": OPERATOR}, host="localhost", path=path, tls=site.tls) as listener:
        assert listener.call("join", "an-account") == {"joined": ["an-account"]}
        emitter = socketio.RedisManager(servers.valkey.url, write_only=True)
        emitter.emit("support_room_updated", {"room_id": "a"}, room="support-an-account")
        assert listener.next_event() == ("support_room_updated", {"room_id": "a"})


def test_only_the_process_limits_the_size_of_a_message(site: Proxy) -> None:
    assert site.ask("POST", "/api/queue/message", message("mail", MAX_PAYLOAD_BYTES - 100), **KEY).status == 201
    refused = site.ask("POST", "/api/queue/message", message("mail", 2 * MAX_PAYLOAD_BYTES), **KEY)
    assert (refused.status, {*refused.body}) == (413, {"error", "message", "field"})


def test_wrong_keys_are_counted_despite_forged_client_addresses(site: Proxy) -> None:
    tries = [
        site.ask("GET", "/api/queue/status", X_API_KEY=f"{UNKNOWN}{number}", X_Forwarded_For=f"10.0.0.{number}").status
        for number in range(12)
    ]
    assert tries[0] == HTTPStatus.UNAUTHORIZED
    assert tries[-1] == HTTPStatus.TOO_MANY_REQUESTS


def message(type: str, size: int) -> str:
    return json.dumps({"type": type, "payload": "x" * size})


def add(site: Proxy, type: str) -> str:
    answer = site.ask("POST", "/api/queue/message", message(type, 1), **KEY)
    assert answer.status == HTTPStatus.CREATED
    return str(answer.body["id"])
