"""`queue-manager start`: all processes of the Procfile, forked from one."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from dev import procfile
from dev.children import spawn
from dev.ports import free_port
from dev.processes import children
from models.database import server_now
from queue_manager.cli.start import PROCESSES
from queue_manager.core.clock import seconds
from queue_manager.core.redis_client import connect
from queue_manager.core.settings import settings
from queue_manager.telemetry import worker_heartbeats
from tests.deployment.installation import status
from tests.documented import DOCS, block
from tests.e2e.celery_processes import ROOT
from tests.e2e.commands import COMMAND, queue_manager
from tests.e2e.watching import is_open, woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = pytest.mark.processes


def test_start_runs_the_processes_of_the_procfile() -> None:
    found = {one.name: shlex.split(one.command) for one in procfile.read(ROOT / "Procfile")}
    del found[procfile.RELEASE]
    assert {name: shlex.split(command) for name, command in PROCESSES.items()} == found


def test_started_processes_work_and_a_killed_worker_is_replaced(clean: Servers, tmp_path: Path) -> None:
    commands = block(0, heading="One machine", page=DOCS / "how-to" / "deploy.md").splitlines()
    migrate, start_all = [command.removeprefix("$ queue-manager ").split() for command in commands]
    assert queue_manager(*migrate, cwd=tmp_path).returncode == 0
    ports = {"QM_WEB_PORT": str(free_port()), "FLOWER_PORT": str(free_port())}
    env = {**os.environ, **ports, "PYTHONPATH": str(ROOT), "QM_SNOOZE_SCAN_SECONDS": "1", "QM_CONVERSATIONS": "true"}
    with open(tmp_path / "log", "wb") as log:
        start = spawn([*COMMAND, *start_all], env=env, cwd=tmp_path, stdout=log, stderr=log, grace=30)
    try:
        opened(3)
        for port, path in zip(ports.values(), ("/readyz", "/"), strict=True):
            eventually(lambda port=port, path=path: status(int(port), path) == 200)
        names = {name(pid): pid for pid in children(start.pid)}
        assert names.keys() == {f"qm-{process}" for process in PROCESSES}

        os.kill(names["qm-worker"], signal.SIGKILL)
        eventually(lambda: {name(pid) for pid in children(start.pid)} == names.keys())
        opened(3)

        os.kill(names["qm-jobs"], signal.SIGHUP)  # Celery executes its command again
        eventually(lambda: cmdline(names["qm-jobs"]).startswith("celery -A tasks worker --hostname jobs@"))
        eventually(lambda: any(worker.startswith("jobs@") for worker in online()))
        assert start.poll() is None

        os.kill(start.pid, signal.SIGTERM)
        assert start.wait(60) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in names.values())
        eventually(lambda: not online())  # the killed one did not say that it ends
        lines = (tmp_path / "log").read_text()
        assert "Traceback" not in lines
        assert all(re.search(rf"^{process} *\| ", lines, re.MULTILINE) for process in PROCESSES), lines
    finally:
        start.end()


def test_processes_can_be_excluded(tmp_path: Path) -> None:
    result = queue_manager("start", "--without", "flowers", cwd=tmp_path)
    assert result.returncode == 2
    assert "--without flowers: must be one of worker, jobs, scans, beat, flower, web" in result.stderr
    everything = [word for name in PROCESSES for word in ("--without", name)]
    assert "no process is left" in queue_manager("start", *everything, cwd=tmp_path).stderr


def test_a_wrong_setting_is_reported_once(tmp_path: Path) -> None:
    result = queue_manager("start", cwd=tmp_path, QM_WORKER_CONCURRENCY="many")
    assert result.returncode == 2
    assert result.stderr.count("QM_WORKER_CONCURRENCY") == 1


def test_an_address_that_is_refused_ends_the_command(tmp_path: Path) -> None:
    others = [word for name in PROCESSES if name != "web" for word in ("--without", name)]
    result = queue_manager("start", "--host", "0.0.0.0", *others, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("--host 0.0.0.0: without QM_API_KEYS anybody could use it") == 1


def test_a_busy_port_ends_the_command(tmp_path: Path) -> None:
    others = [word for name in PROCESSES if name != "web" for word in ("--without", name)]
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = str(other.getsockname()[1])
        result = queue_manager("start", "--port", port, *others, cwd=tmp_path)
    assert result.returncode == 2
    assert f"--host 127.0.0.1 --port {port}: cannot be used" in result.stderr


def opened(number: int) -> None:
    """Wait until rooms that are due now have been opened, each once."""
    rooms = [make_room(server_now() - seconds(1)) for _ in range(number)]
    eventually(lambda: all(map(is_open, rooms)))
    assert [len(moments) for moments in woken(rooms)] == [1] * number


def name(pid: int) -> str:
    """Return the name of a process; it is empty if the process has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def cmdline(pid: int) -> str:
    """Return the command line of a Python script; it is empty for a moment while a process executes another program."""
    _, *words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    return " ".join([Path(word).name if at == 0 else word for at, word in enumerate(words)])


def online() -> set[str]:
    with connect(settings().redis_url) as client:
        return {worker.name for worker in worker_heartbeats.online(client)}
