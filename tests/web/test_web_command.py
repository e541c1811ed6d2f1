"""`queue-manager web` as an operator sees it: how it starts, how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from dev.ports import is_answering
from dev.processes import children
from dev.supervisor import STOP_GRACE
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.web.listener import Listener
from tests.web.web_process import COMMAND, ROOT, SECRET, Web, token, web

pytestmark = pytest.mark.processes

PATIENT = """from queue_manager.core.redis_client import CLIENT_OPTIONS
CLIENT_OPTIONS["socket_timeout"] = 15
"""
"""A command that was sent to Redis waits longer for its answer than a process may take to end, `STOP_GRACE`."""


def start(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run([*COMMAND, *arguments], env=environment, cwd=cwd, capture_output=True, text=True)


def test_without_keys_no_system_is_served_beyond_loopback(tmp_path: Path) -> None:
    on = {"QM_MESSAGE_QUEUE": "true", "QM_JOBS": "true", "SOCKETIO_TOKEN_SECRET": SECRET}
    result = start("--host", "0.0.0.0", cwd=tmp_path, **on)
    assert result.returncode == 2
    assert result.stderr.startswith("queue-manager: --host 0.0.0.0: without QM_API_KEYS")
    assert "it must be a loopback address" in result.stderr


def test_a_short_secret_is_refused_without_being_shown(tmp_path: Path) -> None:
    result = start(cwd=tmp_path, SOCKETIO_TOKEN_SECRET="short-s3cret")
    assert result.returncode == 2
    expected = "queue-manager: SOCKETIO_TOKEN_SECRET: must be a secret of at least 32 characters"
    assert result.stderr.strip() == expected


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_is_refused(workers: str, servers: Servers, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = start("--port", port, "--workers", workers, cwd=tmp_path, QM_MESSAGE_QUEUE="true")
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert "Address already in use" in result.stderr
    assert last.startswith(f"queue-manager: --host 127.0.0.1 --port {port}: cannot be used; choose another")


def test_the_port_is_a_setting_that_an_option_overrides(servers: Servers, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [str(one.getsockname()[1]) for one in (taken, other)]
        (tmp_path / ".env").write_text(f"QM_WEB_PORT={ports[0]}\n")
        results = [start(cwd=tmp_path), start("--port", ports[1], cwd=tmp_path)]
    for result, port in zip(results, ports, strict=True):
        assert f"--host 127.0.0.1 --port {port}: cannot be used" in result.stderr
    (tmp_path / ".env").write_text("QM_WEB_PORT=0\n")
    assert start(cwd=tmp_path).stderr.startswith("queue-manager: QM_WEB_PORT='0': must be a whole number from 1 to")


def test_a_host_that_is_unknown_is_refused(servers: Servers, tmp_path: Path) -> None:
    keys = json.dumps([{"name": "ada", "key": "0123456789abcdef" * 2, "role": "viewer"}])
    result = start("--host", "unknown.invalid", cwd=tmp_path, QM_API_KEYS=keys)
    assert result.returncode == 2
    assert "--host unknown.invalid --port 6002: cannot be used" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_ends_orderly_although_a_client_is_connected(
    number: signal.Signals, servers: Servers, tmp_path: Path
) -> None:
    with web(tmp_path, SOCKETIO_TOKEN_SECRET=SECRET) as process:
        client = Listener(process.port, {"token": token("a")})
        os.kill(process.child.pid, number)
        assert process.child.wait(STOP_GRACE) == 0
        client.close()
        assert "Traceback" not in process.log
        assert "timeout graceful shutdown exceeded" not in process.log


def test_process_ends_soon_although_its_servers_do_not_answer(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PATIENT)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        urls = {"REDIS_URL": f"redis://{address}/0", "MONGO_DB_URL": f"mongodb://{address}/any?replicaSet=any"}
        with web(tmp_path, QM_MESSAGE_QUEUE="true", QM_JOBS="true", PYTHONPATH=f"{tmp_path}:{ROOT}", **urls) as process:
            os.kill(process.child.pid, signal.SIGTERM)
            assert process.child.wait(STOP_GRACE) == 0
            assert "Traceback" not in process.log


def test_several_processes_share_the_port_and_a_dead_one_is_replaced(servers: Servers, tmp_path: Path) -> None:
    with web(tmp_path, "--workers", "2", QM_MESSAGE_QUEUE="true") as process:
        first = children(process.child.pid)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        assert eventually(lambda: len(children(process.child.pid)) == 2 and first[0] not in children(process.child.pid))
        assert {process.get("/readyz").status for _ in range(20)} == {200}

        last = children(process.child.pid)
        os.kill(process.child.pid, signal.SIGTERM)
        assert process.child.wait(30) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in last)
        assert "Traceback" not in process.log


def test_processes_end_when_their_parent_is_killed(servers: Servers, tmp_path: Path) -> None:
    with web(tmp_path, "--workers", "2") as process:
        os.kill(process.child.pid, signal.SIGKILL)
        assert eventually(lambda: not is_answering(process.port))


def test_idle_connection_stays_open_for_a_proxy(process: Web) -> None:
    connection = HTTPConnection("127.0.0.1", process.port, timeout=10)
    for wait in (0, 6):  # seconds; uvicorn closes it after 5 unless told otherwise
        time.sleep(wait)
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        assert (response.status, response.read() != b"") == (200, True)
        assert response.getheader("connection") != "close"
    connection.close()
