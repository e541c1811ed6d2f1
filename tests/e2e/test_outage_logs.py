"""What the processes log while a server is unavailable: few lines each, without tracebacks or a driver's internals."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest
import redis

from beat_schedule import SYSTEMS
from dev.embedded_server import EmbeddedServer
from dev.ports import is_free
from dev.servers import Mongo, Valkey
from models import database, schema
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.job_processes import job_lab
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.rooms import make_room
from tests.web.web_process import Web, web

pytestmark = pytest.mark.crash

OUTAGE = 30.0  # seconds
LOADED_KEYS = 40_000
SLOW_LOADING = {"key-load-delay": "400"}  # microseconds for each key
INTERNALS = re.compile(
    r"Traceback|Topology ?Description|full error|writeConcernErrors|lsid|UUID\(|txnNumber|configured timeouts"
    r"|worker_cancel_long_running_tasks"
)
MAX_LINES_PER_EVENT = 3  # the main process of a worker and its two children
KEY = "operator-of-this-test-0123456789abcdef"
ENV = {
    "QM_CONVERSATIONS": "true",
    "QM_PROJECTS": "true",
    "QM_SITES_FIX_STALE_THUMBNAILS": "true",
    "QM_MESSAGE_QUEUE": "true",
    "QM_JOBS": "true",
    "QM_HOOKS": "true",
    "JOBS_IMPORTS": '["tests.e2e.job_works"]',
    "JOBS_TIMER_MS": "1000",
    "JOBS_LEASE_SECONDS": "5",
    "QM_LEASE_SECONDS": "5",
    "QM_SNOOZE_SCAN_SECONDS": "2",
    "QM_API_KEYS": json.dumps([{"name": "test", "key": KEY, "role": "operator"}]),
    "QM_LOG_FORMAT": "json",
}
GETS = (
    *("/api/jobs", "/api/jobs/status", "/api/overview", "/api/schedule", "/api/systems/support-snooze"),
    *("/api/queue/status", "/api/queue/main/messages", "/metrics", "/readyz"),
)
POSTS = {
    "/api/jobs": {"name": "n0"},
    "/api/jobs/pause": {"names": ["n9"]},
    "/api/queue/message": {"type": "mail", "payload": 1},
    "/api/trigger/jobs/dispatch": {},
}


def problems(lines: Iterable[str]) -> Counter[tuple[str, str]]:
    """Return what a process logged above the level INFO: logger and event, and how often."""
    found = [one for one in map(json.loads, lines) if one["level"] != "info"]
    return Counter((one["logger"], one["event"].split("[")[0]) for one in found)


def repeated_lines(lines: Iterable[str]) -> dict[tuple[str, str], int]:
    """Return what a process logged too often in one outage."""
    return {event: number for event, number in problems(lines).items() if number > MAX_LINES_PER_EVENT}


class Deployment:
    """All processes, with servers of the test's own."""

    def __init__(self, logs: Path, web: Web, servers: dict[str, EmbeddedServer]) -> None:
        self._logs, self._web, self.servers = logs, web, servers

    def lines(self) -> dict[str, list[str]]:
        return {path.stem: path.read_text(errors="replace").splitlines() for path in self._logs.glob("*.log")}

    def responses(self) -> list[tuple[str, int, str]]:
        """Send each request; return the method and path, the status and the body."""
        headers = {"x_api_key": KEY, "content_type": "application/json"}
        found = [(f"POST {path}", self._web.ask("POST", path, json.dumps(POSTS[path]), **headers)) for path in POSTS]
        found += [(f"GET {path}", self._web.ask("GET", path, **headers)) for path in GETS]
        return [(what, response.status, response.text) for what, response in found]


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    logs = tmp_path / "logs"
    logs.mkdir()
    database.close()
    with ExitStack() as stack:
        valkey = stack.enter_context(Valkey(tmp_path / "valkey", config=SLOW_LOADING))
        mongo = stack.enter_context(Mongo(tmp_path / "mongo"))
        env = {**ENV, "REDIS_URL": valkey.url, "MONGO_DB_URL": mongo.url}
        for name in ("REDIS_URL", "MONGO_DB_URL", "QM_JOBS", "JOBS_IMPORTS"):
            monkeypatch.setenv(name, env[name])
        settings.cache_clear()
        schema.migrate(SYSTEMS)
        stack.enter_context(worker(logs / "worker.log", env=env))
        stack.enter_context(CeleryProcess(logs / "beat.log", "beat", env=env))
        yield Deployment(
            logs, stack.enter_context(web(logs, **env)), {"mongo": mongo, "valkey": valkey, "loading": valkey}
        )
        database.close()
    monkeypatch.undo()
    settings.cache_clear()


def fill(url: str) -> None:
    """Let a Redis load its data for seconds when it starts again."""
    with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as pipe:
        for number in range(LOADED_KEYS):
            pipe.set(f"another program:{number}", "")
        pipe.execute()


def is_loading(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as client:
            client.ping()
    except redis.exceptions.BusyLoadingError:
        return True
    except redis.ConnectionError:
        pass
    return False


@pytest.mark.parametrize("victim", ["mongo", "valkey", "loading"])
def test_an_outage_is_one_line_of_each_component(victim: str, deployment: Deployment, tmp_path: Path) -> None:
    mark = tmp_path / "may-end"
    lab = job_lab()
    running = lab.run("fragile", str(mark))
    rooms = [make_room(server_now() + seconds(due)) for due in (3, 6, 9, 12) for _ in range(10)]
    eventually(lambda: lab.state(running) == "executing")
    if victim == "loading":
        fill(settings().redis_url)
    server, before = deployment.servers[victim], {name: len(found) for name, found in deployment.lines().items()}

    server.kill()
    eventually(lambda: is_free(server.port))
    starting = Thread(target=server.start)
    if victim == "loading":
        starting.start()
        eventually(lambda: is_loading(settings().redis_url))
    ends_at, responses = time.monotonic() + OUTAGE, []
    while starting.is_alive() if victim == "loading" else time.monotonic() < ends_at:
        responses += deployment.responses()
        time.sleep(1)  # the rhythm of the requests, not a wait for anything
    during = {name: found[before[name] :] for name, found in deployment.lines().items()}
    if victim != "loading":
        server.start()
    mark.touch()
    eventually(lambda: all(is_open(room) for room in rooms))
    eventually(lambda: lab.state(running) == "success")
    everything = {name: found[before[name] :] for name, found in deployment.lines().items()}

    internal = [(what, body) for what, _, body in responses if INTERNALS.search(body)]
    internal += [(name, line) for name, found in everything.items() for line in found if INTERNALS.search(line)]
    assert internal == []
    assert {(what, status) for what, status, _ in responses if status not in (200, 201, 202, 503)} == set()
    failed = [(what, body) for what, status, body in responses if status == 503 and what.startswith("POST")]
    assert failed
    not_begun = {what for what, body in failed if "nothing was changed" in body}
    assert not_begun == ({"POST /api/jobs/pause", "POST /api/trigger/jobs/dispatch"} if victim == "mongo" else set())
    others = [one for one in failed if one[0] not in not_begun]
    assert [one for one in others if "the outcome of the request is unknown" not in one[1]] == []
    assert during.keys() == {"worker", "beat", "web"}
    silent = {name for name, found in during.items() if not problems(found)}
    assert silent <= ({"beat"} if victim == "mongo" else set())  # which does not need MongoDB
    for name, found in during.items():
        assert repeated_lines(found) == {}, name
