"""Which servers the message queue accepts."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
import redis
from celery import Celery
from redis.exceptions import ReadOnlyError

from dev.ports import free_port
from dev.servers import Valkey
from queue_manager.broker import start_check
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.redis_client import make_client
from queue_manager.core.server_check import require_server
from tests.broker.failing_disk import cannot_save
from tests.e2e.celery_processes import CeleryProcess, log_of_refused_start
from tests.real_servers import Servers

ROOT = Path(__file__).parents[2]


class _Old(socketserver.StreamRequestHandler):
    """Answers as a Redis 6.2 does to what a client asks at its start."""

    def handle(self) -> None:
        info = b"# Server\r\nredis_version:6.2.14\r\nmaxmemory_policy:noeviction\r\n"
        replies = {b"INFO": b"$%d\r\n%s\r\n" % (len(info), info), b"HELLO": b"%1\r\n$5\r\nproto\r\n:3\r\n"}
        while line := self.rfile.readline():
            words = [self._word() for _ in range(int(line[1:]))]
            self.wfile.write(replies.get(words[0].upper(), b"+OK\r\n"))

    def _word(self) -> bytes:
        self.rfile.readline()
        return self.rfile.readline().strip()


@contextmanager
def old_redis() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Old) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
        server.shutdown()


def test_current_server_version_is_accepted(servers: Servers) -> None:
    require_server(servers.valkey.url)


def test_a_server_that_evicts_is_refused(tmp_path: Path) -> None:
    with Valkey(tmp_path / "redis", config={"maxmemory-policy": "allkeys-lru"}) as server:
        with pytest.raises(ConfigurationError, match="maxmemory-policy 'allkeys-lru'"):
            require_server(server.url)


def test_an_older_server_is_refused_with_its_version() -> None:
    with old_redis() as url, pytest.raises(ConfigurationError, match=r"is version 6\.2\.14.*must be.*Redis 7\.0"):
        require_server(url)


@pytest.mark.parametrize("write", [("SET", "key", 1), ("EVAL", "redis.call('SET', 'key', 1)", 0)])
def test_connections_are_reopened_after_a_server_became_a_replica(write: tuple[str | int, ...], tmp_path: Path) -> None:
    with Valkey(tmp_path / "redis") as server, make_client(server.url) as client, make_client(server.url) as other:
        before = {client.client_id(), other.client_id()}
        client.replicaof("127.0.0.1", "1")
        assert client.client_id() in before
        with pytest.raises(ReadOnlyError):
            client.execute_command(*write)
        after = {client.client_id(), other.client_id()}
        assert not before & after
        assert {client.client_id(), other.client_id()} == after


def has_no_replicas(client: redis.Redis, _: Path) -> None:
    client.config_set("min-replicas-to-write", 1)


@pytest.mark.parametrize(("misconfigure", "said"), [(cannot_save, "MISCONF"), (has_no_replicas, "NOREPLICAS")])
def test_connections_are_reopened_after_a_misconfigured_server_refused_writes(
    misconfigure: Callable[[redis.Redis, Path], None], said: str, tmp_path: Path
) -> None:
    with Valkey(tmp_path / "redis") as server, make_client(server.url) as client, make_client(server.url) as other:
        before = {client.client_id(), other.client_id()}
        with redis.Redis.from_url(server.url) as admin:
            misconfigure(admin, tmp_path / "redis")
        with pytest.raises(redis.ResponseError, match=said):
            client.set("key", 1)
        assert not before & {client.client_id(), other.client_id()}
        server.kill()  # which cannot save, and so would not end at once


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker", "beat"])
def test_a_node_of_a_cluster_is_refused_as_the_broker(role: str, servers: Servers, tmp_path: Path) -> None:
    # By default the nodes talk on the port + 10,000, which an outgoing connection may have.
    config = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with Valkey(tmp_path / "redis", config=config) as node:
        with pytest.raises(ConfigurationError, match="is a node of a Redis Cluster"):
            start_check.require_broker(Celery(broker=node.url), node.url)  # as health checks it
        said = log_of_refused_start(CeleryProcess(tmp_path / "process.log", role, env={"REDIS_URL": node.url}))
    assert "is a node of a Redis Cluster" in said


@pytest.mark.slow
def test_a_worker_does_not_start_on_an_older_server(servers: Servers, tmp_path: Path) -> None:
    with old_redis() as url:
        env = {"QM_MESSAGE_QUEUE": "true", "QM_QUEUE_REDIS_URL": url}
        said = log_of_refused_start(CeleryProcess(tmp_path / "worker.log", "worker", env=env))
    assert "is version 6.2.14" in said


@pytest.mark.slow
def test_a_web_process_does_not_start_on_an_older_server(servers: Servers, tmp_path: Path) -> None:
    with old_redis() as url:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "QM_MESSAGE_QUEUE": "true", "QM_QUEUE_REDIS_URL": url}
        command = [
            sys.executable,
            "-c",
            "from queue_manager.cli import main; main()",
            "web",
            "--port",
            str(free_port()),
        ]
        ended = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "is version 6.2.14" in ended.stderr


def test_refused_password_of_the_broker_is_not_an_outage(servers: Servers) -> None:
    url = f"redis://app:s3cret@127.0.0.1:{servers.valkey.port}/1"
    with pytest.raises(ConfigurationError, match=r"refuses our credentials \(invalid username-password pair") as error:
        start_check.require_broker(Celery(broker=url), url)
    assert "s3cret" not in str(error.value)
