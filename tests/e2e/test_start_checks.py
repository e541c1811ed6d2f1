"""Errors that the check at start-up cannot exclude end the process, in one sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from pymongo import MongoClient

from dev.ports import LOOPBACK
from dev.servers import DATABASE, REPLICA_SET, Valkey
from tests.e2e.celery_processes import ROOT, CeleryProcess, log_of_refused_start
from tests.e2e.commands import COMMAND, environment, queue_manager
from tests.eventually import eventually
from tests.guarded_mongo import GuardedMongo
from tests.real_servers import Servers
from tests.servers.dns_server import dns_server, env_with_dns

pytestmark = pytest.mark.processes


@pytest.fixture
def unknown() -> Iterator[dict[str, str]]:
    """The environment of a process whose database has a name that DNS does not know."""
    with dns_server(1, txt="") as port:
        yield {
            **env_with_dns(port),
            "MONGO_DB_URL": "mongodb+srv://app:s3cret@no-such-name.example.invalid/product",
        }


class MongoWithUsers(GuardedMongo):
    """`admin` may do everything, `reader` may read; both have the password `right`."""

    def create_users(self, client: MongoClient[dict[str, Any]]) -> None:
        for user, role in (("admin", "root"), ("reader", "readAnyDatabase")):
            client.admin.command("createUser", user, pwd="right", roles=[role])

    def url_of(self, user: str) -> str:
        return f"mongodb://{user}:right@{LOOPBACK}:{self.port}/{DATABASE}?replicaSet={REPLICA_SET}&authSource=admin"


@contextmanager
def refused_user(valkey: Valkey, *rights: str) -> Iterator[str]:
    """Return the URL of a user with these rights."""
    with redis.Redis.from_url(valkey.url) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", *rights)
    yield f"redis://app:s3cret@{LOOPBACK}:{valkey.port}/0"


def migrate(url: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return queue_manager("migrate", cwd=directory, MONGO_DB_URL=url)


def test_worker_whose_database_name_is_unknown_ends(unknown: dict[str, str], servers: Servers, tmp_path: Path) -> None:
    said = log_of_refused_start(CeleryProcess(tmp_path / "log", "worker", env=unknown))
    assert "MongoDB at mongodb+srv://***@no-such-name.example.invalid/product cannot be used" in said


@pytest.mark.parametrize("role", ["worker", "beat"])
def test_process_whose_user_may_not_run_info_ends(role: str, servers: Servers, tmp_path: Path) -> None:
    with Valkey(tmp_path / "redis") as valkey, refused_user(valkey, "+@all", "-info") as url:
        said = log_of_refused_start(CeleryProcess(tmp_path / "log", role, env={"REDIS_URL": url}))
    assert "does not let this user run INFO" in said


def test_unexpected_error_ends_the_worker_and_its_traceback_is_logged_at_debug_level(
    servers: Servers, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from queue_manager.core import server_check\n"
        "def require_server(url): raise LookupError('out of the blue')\n"
        "server_check.require_server = require_server\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    said = log_of_refused_start(CeleryProcess(tmp_path / "log", "worker", env=path))
    assert "A check at the start failed, so this process ends (LookupError: out of the blue)" in said

    debug = CeleryProcess(tmp_path / "debug", "worker", env={**path, "QM_LOG_LEVEL": "DEBUG"}).start(ready=False)
    with debug:
        eventually(lambda: debug.exit_code() is not None)
    assert "Traceback" in debug.log


@pytest.mark.parametrize("command", ["migrate", "scan support-snooze"])
def test_commands_name_an_unknown_database_in_one_sentence(
    command: str, unknown: dict[str, str], tmp_path: Path
) -> None:
    env, line = environment(**unknown), [*COMMAND, *command.split()]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no-such-name.example.invalid/product cannot be used" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert "s3cret" not in done.stderr + done.stdout


def test_migrate_without_rights_names_the_missing_ones(tmp_path: Path) -> None:
    with MongoWithUsers(tmp_path / "mongo") as mongo:
        done = migrate(mongo.url_of("reader"), tmp_path)
        assert done.returncode == 2
        assert f"it needs the role readWrite on the database '{DATABASE}'" in done.stderr
        assert "Traceback" not in done.stderr + done.stdout
        assert "right@" not in done.stderr + done.stdout
        assert migrate(mongo.url_of("admin"), tmp_path).returncode == 0
