"""The documented user of Redis may do everything that Queue Manager does, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from dev.ports import LOOPBACK
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.core.redis_client import make_client
from queue_manager.doctor.redis_servers import permissions
from tests.documented import block
from tests.real_servers import Servers
from tests.rooms import make_room
from tests.servers.everything import command, do_everything, processes, shown
from tests.servers.redis_servers import PASSWORD, RedisServer

pytestmark = pytest.mark.processes

USER, USER_PASSWORD = "queue-manager", "us3r/p@ss"
REFUSED = [
    *("FLUSHALL", "CONFIG GET maxmemory", "KEYS *", "SCAN 0", "ACL LIST", "SHUTDOWN", "SCRIPT FLUSH"),
    *("CLIENT LIST", "MONITOR", "REPLICAOF NO ONE", "MODULE LIST", "SWAPDB 0 1"),
    *(
        "GET orders",
        "SET orders 1",
        "DEL orders",
        "RENAME qm:paused orders",
        "EVAL return{redis.call('GET','orders')} 0",
    ),
    *("PUBLISH orders 1", "SUBSCRIBE orders", "PSUBSCRIBE *"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        setuser, grant = (block(number, heading="A Redis user with least privilege") for number in range(2))
        with make_client(server.url) as client:
            client.execute_command(*setuser.replace(">password", f">{USER_PASSWORD}").split())
            client.execute_command(*grant.replace("trial-end", "second-try").split())
        yield server


def url(server: RedisServer) -> str:
    return f"redis://{USER}:{quote(USER_PASSWORD, safe='')}@{LOOPBACK}:{server.port}/0"


def grant_stock(server: RedisServer) -> None:
    with make_client(server.url) as client:
        client.execute_command(*block(2, heading="A Redis user with least privilege").split())


def denied(server: RedisServer) -> list[str]:
    """Return what users were refused."""
    with make_client(server.url, decode_responses=True) as client:
        return [f"{entry['reason']} {entry['object']}" for entry in client.acl_log()]


def test_everything_works_with_the_documented_user(server: RedisServer, clean: Servers, tmp_path: Path) -> None:
    with processes(tmp_path, REDIS_URL=url(server)) as running:
        do_everything(running)
        text = shown(running)
        text += command("systems", "pause", "support-snooze", **running.env)
        due = make_room(server_now() - seconds(1))
        for arguments in (f"why {due}", "systems resume support-snooze", "queue list dead"):
            text += command(*arguments.split(), **running.env)
        assert running.add_message() == 201
        text += command("queue", "pause", "mail", **running.env)
        assert running.ask("GET", "/api/queue/message").status == 404
        text += command("queue", "resume", "mail", **running.env)
        assert running.acknowledge(running.take()) == 200
        text += command("dead-letters", **running.env) + command("systems", "list", **running.env)
    assert denied(server) == []
    assert "Traceback" not in running.logs
    for secret in (USER_PASSWORD, quote(USER_PASSWORD, safe=""), PASSWORD):
        assert secret not in text


def test_kombus_transport_works_with_the_documented_user(server: RedisServer, clean: Servers, tmp_path: Path) -> None:
    grant_stock(server)
    with processes(tmp_path, REDIS_URL=url(server), QM_BROKER="stock") as running:
        do_everything(running)
    assert denied(server) == []


@pytest.mark.smoke
def test_doctor_names_what_kombus_transport_needs(server: RedisServer, change_settings: Callable[..., None]) -> None:
    change_settings(REDIS_URL=url(server))
    assert list(permissions()) == []
    change_settings(QM_BROKER="stock")
    (finding,) = permissions()
    assert str(finding).count("may not use BRPOP, RPOP, the key _kombu.binding.queue-manager") == 1
    grant_stock(server)
    assert list(permissions()) == []


def test_documented_user_is_allowed_nothing_else(server: RedisServer) -> None:
    with make_client(url(server)) as client:
        for words in REFUSED:
            with pytest.raises(redis.ResponseError, match=r"permission|ACL|can't access"):
                client.execute_command(*words.split(" "))
    assert len(denied(server)) > 0
