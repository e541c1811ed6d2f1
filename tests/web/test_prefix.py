"""A process below a path prefix, behind proxies that pass the prefix on and behind those that remove it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from fastapi import FastAPI

from dev.ports import free_port
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import Settings
from queue_manager.web.app import api_of, require_other_paths
from queue_manager.web.auth.authorization import required_roles
from tests.e2e.commands import queue_manager
from tests.real_servers import Servers
from tests.web.credentials import KEYS, OPERATOR, log_in, own_page
from tests.web.listener import Listener
from tests.web.queue_client import Queue, empty_queue
from tests.web.web_process import Web, answered

PREFIX = "/queue-manager"
HTML = {"Accept": "text/html"}
KEY = {"X_API_KEY": OPERATOR}


@pytest.fixture(scope="module")
def api(servers: Servers) -> FastAPI:
    return api_of(Settings(qm_message_queue=True, qm_jobs=True, qm_hooks=True), asyncio.Event())


def test_a_prefix_with_which_a_path_begins_is_refused(api: FastAPI) -> None:
    paths = ["/socket.io", "/static/js", *(re.sub("{.*?}", "0", str(route.path)) for route, _ in required_roles(api))]
    prefixes = {"/".join(path.split("/")[:end]) for path in paths for end in range(2, path.count("/") + 2)} - {"/"}
    assert {"/api", "/api/jobs", "/jobs", "/messages", "/jobs/0", "/static", "/rooms", "/login"} < prefixes
    for prefix in prefixes:
        with pytest.raises(ConfigurationError, match=rf"^QM_WEB_PREFIX='{prefix}': must not .*; use /queue-manager,"):
            require_other_paths(prefix, api)


@pytest.mark.parametrize("prefix", ["", "/queue-manager", "/jobs-of-us", "/api/queue-manager", "/tools/jobs"])
def test_a_prefix_with_which_no_path_begins_is_accepted(prefix: str, api: FastAPI) -> None:
    require_other_paths(prefix, api)


def test_a_refused_prefix_ends_the_process_with_one_line(clean: Servers, tmp_path: Path) -> None:
    run = queue_manager("web", "--port", str(free_port()), cwd=tmp_path, QM_WEB_PREFIX="/jobs/")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        "queue-manager: QM_WEB_PREFIX='/jobs': must not begin like a path of the web process, such as /jobs; use "
        "/queue-manager, for example\n"
    )


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
