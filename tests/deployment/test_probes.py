"""Health checks and probes against the real processes: they pass only while a process works, as `deploy.md` says."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dotenv import dotenv_values

from dev import procfile
from dev.servers import Mongo, Valkey
from tests.deployment.installation import ROOT
from tests.deployment.probes import (
    COMPOSE,
    KINDS,
    KUBERNETES,
    CommandProbe,
    Probe,
    container_of,
    of_compose,
    of_kubernetes,
    passing,
)
from tests.deployment.programs import program
from tests.e2e.celery_processes import CeleryProcess
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.servers.everything import command
from tests.web.credentials import KEYS
from tests.web.web_process import web

pytestmark = pytest.mark.timeout(400)

WORKERS = ("worker", "jobs", "scans")
COMMANDS = {one.name: one.command.split() for one in procfile.read(ROOT / "Procfile")}
CONFIG = {name: value or "" for name, value in dotenv_values(KUBERNETES / "config.env").items()}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that hangs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.deploy
@pytest.mark.parametrize("name", WORKERS)
def test_probe_of_a_worker_fails_if_it_hangs_or_has_no_broker(name: str, clean: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        env = {**CONFIG, "REDIS_URL": valkey.url, "QM_WORKER_CONCURRENCY": "1"}
        probes: dict[str, Probe] = {"compose": of_compose(name, env=env), **of_kubernetes(name, env=env)}
        with CeleryProcess(tmp_path / "worker.log", *COMMANDS[name][3:], env=env) as process:
            assert passing(probes) == {*probes} == {"compose", "startupProbe"}
            with stopped(process.pid):
                assert passing(probes) == set()
            eventually(lambda: passing(probes) == {*probes})
            valkey.kill()
            assert passing(probes) == set()
            valkey.start()
            eventually(lambda: passing(probes) == {*probes})
            assert process.is_alive()
        assert passing(probes) == set()


@pytest.mark.deploy
def test_web_process_is_not_ready_without_its_servers_and_not_alive_if_it_hangs(tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey, Mongo(tmp_path / "mongo") as mongo:
        env = {**CONFIG, "REDIS_URL": valkey.url, "MONGO_DB_URL": mongo.url, "QM_API_KEYS": KEYS}
        command("migrate", **env)
        with web(tmp_path, **env) as process:
            probes: dict[str, Probe] = {
                "compose": of_compose("web", {":6002": f":{process.port}"}),
                **of_kubernetes("web", process.port),
            }
            eventually(lambda: passing(probes) == {*probes} == {"compose", *KINDS})
            for server in (valkey, mongo):
                server.kill()
                eventually(lambda: passing(probes) == {"startupProbe", "livenessProbe"})
                server.start()
                eventually(lambda: passing(probes) == {*probes})
            with stopped(process.child.pid):
                assert passing(probes) == set()
            eventually(lambda: passing(probes) == {*probes})


@pytest.mark.deploy
@pytest.mark.parametrize("name", ["redis1", "sentinel1"])
def test_healthcheck_of_redis_in_compose_fails_if_it_hangs_or_is_unavailable(name: str, tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as valkey:
        client, port = program("redis-cli", package="redis-tools"), str(valkey.port)
        check = of_compose(name, {"valkey-cli": client, "26379": port})
        words = check.command if port in check.command else [client, "-p", port, *check.command[1:]]
        probes: dict[str, Probe] = {name: CommandProbe(words, check.timeout, check.env)}
        assert passing(probes) == {name}
        with stopped(valkey.pid):
            assert passing(probes) == set()
        eventually(lambda: passing(probes) == {name})
        valkey.kill()
        assert passing(probes) == set()


def test_each_process_has_the_probes_that_it_needs() -> None:
    """A beat that hangs is replaced by the other one; a migration ends."""
    assert {name for name, one in COMPOSE.items() if "healthcheck" in one and one["image"] == "queue-manager"} == {
        *WORKERS,
        "web",
    }
    probes = {name: {kind for kind in KINDS if kind in container_of(name)} for name in (*WORKERS, "beat", "web")}
    assert probes == {**{name: {"startupProbe"} for name in WORKERS}, "beat": set(), "web": {*KINDS}}
