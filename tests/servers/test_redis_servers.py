"""All processes work with Redis behind Sentinel, with TLS and on a socket, and none shows a password."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from queue_manager.core.redis_client import make_client
from tests.deployment.programs import replaced
from tests.documented import block, options
from tests.e2e.celery_processes import CeleryProcess, log_of_refused_start
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.servers.certificates import Certificates
from tests.servers.everything import command, do_everything, processes, shown
from tests.servers.redis_servers import (
    PASSWORD,
    QUOTED,
    QUOTED_SENTINEL,
    SENTINEL_PASSWORD,
    RedisServer,
    SentinelServer,
    of_sentinel,
    replica_of,
    sentinel_group,
)

pytestmark = pytest.mark.processes

Environment = Callable[[Path], AbstractContextManager[dict[str, str]]]
SECRETS = (PASSWORD, SENTINEL_PASSWORD, QUOTED, QUOTED_SENTINEL)


@contextmanager
def tls(directory: Path) -> Iterator[dict[str, str]]:
    with RedisServer(directory / "redis", certificates=Certificates.made_in(directory / "certificates")) as server:
        yield {"REDIS_URL": server.url}


@contextmanager
def tls_with_kombus_transport(directory: Path) -> Iterator[dict[str, str]]:
    with tls(directory) as env:
        yield {**env, "QM_BROKER": "stock"}


@contextmanager
def socket(directory: Path) -> Iterator[dict[str, str]]:
    path = {"/run/redis/redis.sock": str(directory / "redis.sock")}
    config, url = (replaced(block(number, heading="Unix sockets"), path) for number in range(2))
    with RedisServer(directory / "redis", options(config)):
        yield options(replaced(url, {":password": f":{QUOTED}"}))


@contextmanager
def sentinel(directory: Path) -> Iterator[dict[str, str]]:
    with sentinel_group(directory) as group:
        yield {"REDIS_URL": group.url}


@contextmanager
def sentinel_with_tls(directory: Path) -> Iterator[dict[str, str]]:
    with sentinel_group(directory, Certificates.made_in(directory / "certificates")) as group:
        yield {"REDIS_URL": group.url}


@contextmanager
def queue_and_broker_behind_sentinel(directory: Path) -> Iterator[dict[str, str]]:
    with sentinel_group(directory) as group, RedisServer(directory / "main") as main:
        yield {"REDIS_URL": main.url, "QM_QUEUE_REDIS_URL": group.url, "BROKER_URL": group.url}


@pytest.mark.parametrize(
    "server", [tls, tls_with_kombus_transport, socket, sentinel, sentinel_with_tls, queue_and_broker_behind_sentinel]
)
def test_everything_works_and_no_password_is_shown(server: Environment, clean: Servers, tmp_path: Path) -> None:
    with server(tmp_path) as env, processes(tmp_path, **env) as running:
        do_everything(running)
        text = shown(running)
    assert "Traceback" not in running.logs
    for secret in SECRETS:
        assert secret not in text


def test_wrong_password_of_sentinel_ends_the_process_with_one_sentence(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server, SentinelServer(tmp_path / "sentinel", server.port) as sentinel:
        env = {"REDIS_URL": f"sentinel://{sentinel.url}/0?sentinel_password=s3cret"}
        said = log_of_refused_start(CeleryProcess(tmp_path / "worker", "worker", env=env))
    assert f"Redis at sentinel://{sentinel.url}/0?sentinel_password=*** refuses our credentials" in said
    assert f"no Sentinel gives the address of the master 'mymaster': {sentinel.url}: " in said


def test_a_primary_without_its_replica_accepts_no_messages(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "primary", options(of_sentinel(4))) as primary:
        env = {"QM_MESSAGE_QUEUE": "true", "QM_QUEUE_REDIS_URL": primary.url}
        with pytest.raises(AssertionError, match="Not enough good replicas"):
            command("queue", "add", "mail", **env)
        with RedisServer(tmp_path / "replica", replica_of(primary)):
            with make_client(primary.url) as client:
                eventually(lambda: client.info("replication")["min_slaves_good_slaves"] == 1)
            command("queue", "add", "mail", **env)
