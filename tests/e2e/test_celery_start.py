"""How the processes of the Procfile start, also when something is wrong: as a user sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from beat_schedule import SYSTEMS
from dev import procfile
from dev.binaries import MONGOD
from dev.children import spawn
from dev.ports import free_port
from dev.servers import Mongo, Valkey
from models import scan_run
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.health_rules import Rule
from tests.e2e.celery_processes import ROOT, CeleryProcess, log_of_refused_start, worker
from tests.e2e.commands import queue_manager
from tests.e2e.test_command_line import WRONG, assert_one_line_each
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.pace import promptly
from tests.real_servers import Servers
from tests.rooms import get_room, make_room

pytestmark = pytest.mark.processes


@pytest.mark.smoke
def test_health_shows_leader_scans_and_stats(clean: Servers, tmp_path: Path) -> None:
    env = {"QM_SNOOZE_SCAN_SECONDS": "1"}
    broken = make_room("tomorrow")
    with worker(tmp_path / "worker.log", env=env), CeleryProcess(tmp_path / "beat.log", "beat", env=env) as beat:
        room = make_room(server_now() - seconds(1))
        eventually(lambda: is_open(room))
        eventually(lambda: scan_run.last("tasks.support_snooze.scan_expired_snoozes"))
        state = json.loads(queue_manager("health", "--json", cwd=tmp_path, **env).stdout)
        shown = queue_manager("health", cwd=tmp_path, **env).stdout
    assert state["leader"]["pid"] == beat.pid
    assert state["scans"]["support-snooze"]["errors"] == 0
    assert state["systems"]["support-snooze"]["malformed"] == 1
    assert state["problems"] == [
        {
            "system": "support-snooze",
            "rule": "unreadable-documents",
            "text": f"1 room with a malformed snooze_time, which can never fall due: {broken}",
            "page": None,
            "severity": "critical",
            "action": Rule.UNREADABLE_DOCUMENTS.action,
        }
    ]
    assert "support-snooze, unreadable-documents: 1 room with" in shown
    assert Rule.UNREADABLE_DOCUMENTS.action in shown
    assert all(word in shown for word in ("Leader", "Last scan of support-snooze", "stuck 0  failed 0", "malformed 1"))
    assert "\x1b" not in shown


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_wrong_settings_of_every_kind_stop_celery_with_one_line_each(command: str, tmp_path: Path) -> None:
    wrong = {name: value for name, (value, _) in WRONG.items()}
    said = log_of_refused_start(CeleryProcess(tmp_path / "log", command, env=wrong))
    assert_one_line_each([line for line in said.splitlines() if ": must be " in line])


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_missing_flags_cause_one_clear_warning(command: str, clean: Servers, tmp_path: Path) -> None:
    with CeleryProcess(tmp_path / "log", command, env={"QM_CONVERSATIONS": "false"}) as process:
        assert process.log.count("no system is switched on") == 1
        assert "set QM_CONVERSATIONS or QM_PROJECTS" in process.log


@pytest.fixture
def evicting(tmp_path: Path) -> Iterator[Valkey]:
    with Valkey(tmp_path / "valkey", config={"maxmemory-policy": "allkeys-lru"}) as valkey:
        yield valkey


@pytest.mark.smoke
@pytest.mark.parametrize("command", ["worker", "beat"])
def test_redis_that_evicts_is_refused(command: str, evicting: Valkey, clean: Servers, tmp_path: Path) -> None:
    said = log_of_refused_start(CeleryProcess(tmp_path / "log", command, env={"REDIS_URL": evicting.url}))
    assert "maxmemory-policy 'allkeys-lru'" in said
    assert "must be 'noeviction'" in said


@pytest.mark.smoke
def test_process_waits_for_an_unavailable_redis_and_continues(clean: Servers, tmp_path: Path) -> None:
    valkey = Valkey(tmp_path / "valkey")
    env = {"REDIS_URL": valkey.url.replace("redis://", "redis://:s3cret@")}
    with worker(tmp_path / "log", env=env).start(ready=False) as process:
        eventually(lambda: f"Redis at redis://***@127.0.0.1:{valkey.port}/0 is unreachable" in process.log)
        assert "retrying until it is back" in process.log
        with Valkey(valkey.directory, valkey.port, config={"requirepass": "s3cret"}):
            eventually(lambda: " ready." in process.log)
            assert "is back" in process.log
        assert process.log.count("is unreachable") == 1
        assert "s3cret" not in process.log


def test_worker_waits_for_an_unavailable_mongodb_and_continues(clean: Servers, tmp_path: Path) -> None:
    mongo = Mongo(tmp_path / "mongo")
    env = {"MONGO_DB_URL": mongo.url}
    with worker(tmp_path / "log", env=env).start(ready=False) as process:
        eventually(lambda: f"MongoDB at {mongo.url} is unreachable" in process.log)
        with mongo:
            eventually(lambda: " ready." in process.log)
            assert process.log.count("is unreachable") == 1


@pytest.mark.smoke
def test_wrong_password_ends_the_process_and_is_not_an_outage(clean: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey", config={"requirepass": "right"}) as valkey:
        env = {"REDIS_URL": f"redis://:wr0ng@127.0.0.1:{valkey.port}/0"}
        said = log_of_refused_start(worker(tmp_path / "log", env=env))
    assert "refuses our credentials" in said
    assert "wr0ng" not in said


def test_standalone_mongodb_is_refused(clean: Servers, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "data").mkdir()
    command = [str(MONGOD.find()), "--port", str(port), "--bind_ip", "127.0.0.1", "--dbpath", str(tmp_path / "data")]
    with (tmp_path / "mongod.log").open("wb") as log:
        standalone = spawn([*command, "--nounixsocket"], stdout=log, stderr=log)
    try:
        env = {"MONGO_DB_URL": f"mongodb://127.0.0.1:{port}/product"}
        said = log_of_refused_start(worker(tmp_path / "log", env=env))
        assert "is a standalone server" in said
        assert "must be a replica set" in said
    finally:
        standalone.kill()


@pytest.mark.parametrize("command", ["worker", "beat"])
def test_process_that_waits_for_a_server_can_be_terminated(command: str, tmp_path: Path) -> None:
    env = {"REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    with CeleryProcess(tmp_path / "log", command, env=env).start(ready=False) as process:
        eventually(lambda: "is unreachable" in process.log)
        with promptly(5):
            process.signal(signal.SIGTERM)
            eventually(lambda: not process.is_alive())
        assert process.exit_code() != -signal.SIGTERM  # the default action, which does not end process 1 of a container


def test_flower_starts_with_our_application(clean: Servers, tmp_path: Path) -> None:
    port = free_port()
    env = {"FLOWER_UNAUTHENTICATED_API": "1", "FLOWER_PORT": str(port), "FLOWER_ADDRESS": "127.0.0.1"}
    with CeleryProcess(tmp_path / "log", "flower", env=env) as flower:
        url = f"http://127.0.0.1:{port}/api/queues/length"
        answer = eventually(lambda: _get(url))
        names = {queue["name"] for queue in json.loads(answer)["active_queues"]}
        assert names <= {"queue-manager", "scans", *(system.queue for system in SYSTEMS)}
        assert "Traceback" not in re.sub(r"Inspect method.*", "", flower.log)


@pytest.mark.smoke
def test_commands_of_the_procfile_start(clean: Servers, tmp_path: Path) -> None:
    commands = {process.name: process.command for process in procfile.read(ROOT / "Procfile")}
    assert list(commands) == ["release", "worker", "jobs", "scans", "beat", "flower", "web"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    logs = {name: tmp_path / name for name in ("worker", "scans")}
    children = []
    for name, path in logs.items():
        with path.open("wb") as log:
            children.append(spawn(["/bin/sh", "-c", commands[name]], env=env, stdout=log, stderr=log))
    try:
        for path in logs.values():
            eventually(lambda path=path: " ready." in path.read_text())
        room = make_room(server_now() - seconds(1))
        queue_manager("scan", "support-snooze", cwd=tmp_path)
        eventually(lambda: is_open(room))
        assert get_room(room)["status"] == "open"
        assert "scans " not in logs["worker"].read_text().split("[queues]")[1].split("ready.")[0]
    finally:
        for child in children:
            child.kill()


def _get(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.URLError:
        return None
