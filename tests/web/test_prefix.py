"""A process below a path prefix, behind proxies that pass the prefix on and behind those that remove it."""

from __future__ import annotations

import pytest

from tests.real_servers import Servers
from tests.web.credentials import KEYS, OPERATOR, log_in, own_page
from tests.web.listener import Listener
from tests.web.queue_client import Queue, empty_queue
from tests.web.web_process import Web, answered

PREFIX = "/queue-manager"
HTML = {"Accept": "text/html"}
KEY = {"X_API_KEY": OPERATOR}


@pytest.fixture
def queue(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    return empty_queue(servers, tmp_path_factory, QM_API_KEYS=KEYS, QM_WEB_PREFIX=f"{PREFIX}/")


@pytest.fixture
def process(queue: Queue) -> Web:
    return queue.web


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/", "/docs", "/static/style.css", "/api/overview"]
)
def test_every_path_is_served_with_and_without_the_prefix(process: Web, path: str) -> None:
    assert answered(lambda: process.get(PREFIX + path, **KEY)).status == 200
    assert answered(lambda: process.get(path, **KEY)).status == 200


def test_the_prefix_itself_is_the_overview(process: Web) -> None:
    assert process.get(PREFIX, **HTML, **KEY).text == process.get("/", **HTML, **KEY).text


@pytest.mark.parametrize("path", [f"{PREFIX}er/healthz", f"/other{PREFIX}/healthz", f"{PREFIX}{PREFIX}/healthz"])
def test_paths_outside_the_prefix_are_not_found(process: Web, path: str) -> None:
    assert process.get(path, **KEY).status == 404


def test_messages_are_exchanged_below_the_prefix(process: Web) -> None:
    added = process.post(f"{PREFIX}/api/queue/message", '{"type": "mail", "payload": 1}', **KEY)
    assert added.status == 201
    assert process.get(f"{PREFIX}/api/queue/message", **KEY).body["id"] == added.body["id"]


@pytest.mark.parametrize("sent_to", ["/jobs?state=due", f"{PREFIX}/jobs?state=due"])
def test_redirects_lead_below_the_prefix(process: Web, sent_to: str) -> None:
    assert process.get(sent_to, **HTML).headers["location"] == f"{PREFIX}/login?next=%2Fjobs%3Fstate%3Ddue"
    answer = process.post(f"{PREFIX}/login", f"key={OPERATOR}&next=%2Fjobs%3Fstate%3Ddue")
    assert answer.headers["location"] == f"{PREFIX}/jobs?state=due"
    assert process.post(f"{PREFIX}/logout", **own_page(process, OPERATOR)).headers["location"] == f"{PREFIX}/login"


@pytest.mark.parametrize("next_path", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_a_log_in_never_leads_to_another_site(process: Web, next_path: str) -> None:
    assert process.post("/login", f"key={OPERATOR}&next={next_path}").headers["location"] == f"{PREFIX}/"


def test_the_cookie_is_sent_below_the_prefix_only(process: Web) -> None:
    assert f"; Path={PREFIX};" in log_in(process, OPERATOR).headers["set-cookie"]
    left = process.post("/logout", **own_page(process, OPERATOR))
    assert f"; Path={PREFIX};" in left.headers["set-cookie"]


def test_the_description_of_the_api_names_the_prefix(process: Web) -> None:
    assert process.get(f"{PREFIX}/openapi.json", **KEY).body["servers"] == [{"url": PREFIX}]


def test_the_audit_log_names_the_path_as_it_was_sent(process: Web) -> None:
    process.post(f"{PREFIX}/api/queue/message", '{"type": "mail", "payload": 2}', **KEY)
    assert f"path={PREFIX}/api/queue/message" in process.log


def test_socketio_clients_connect_below_the_prefix(process: Web) -> None:
    with Listener(process.port, {"token": OPERATOR}, path=f"{PREFIX}/socket.io/") as listener:
        assert listener.call("join", "a") == {"joined": ["a"]}
