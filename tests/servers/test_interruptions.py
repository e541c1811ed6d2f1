"""Failovers of Redis and elections of MongoDB under load: all processes follow without a restart, within seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from models import job
from queue_manager.core.redis_client import make_client
from tests.e2e.replica_set import ReplicaSet, own_replica_set
from tests.e2e.watching import is_open, woken
from tests.eventually import eventually
from tests.servers.everything import processes
from tests.servers.interruptions import FOLLOWS_WITHIN, KINDS, under_load
from tests.servers.redis_servers import MASTER, Group, RedisServer, sentinel_group

pytestmark = pytest.mark.processes


@pytest.fixture
def members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplicaSet]:
    with own_replica_set(tmp_path, monkeypatch) as running:
        yield running


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with sentinel_group(tmp_path) as group:
        yield group


def kill_redis(group: Group, members: ReplicaSet) -> None:
    group.servers[0].kill()
    group.sentinels[0].kill()  # on the same machine
    eventually(lambda: group.primary_port() == group.servers[1].port)


def move_redis(group: Group, members: ReplicaSet) -> None:
    with group.sentinels[-1].client() as client:
        client.execute_command("SENTINEL", "FAILOVER", MASTER)
    eventually(lambda: is_replica(group.servers[0]))


def is_replica(server: RedisServer) -> bool:
    with suppress(RedisError), make_client(server.url) as client:  # Sentinel closes its connections meanwhile
        return bool(client.info("replication")["role"] == "slave")
    return False


def kill_mongodb(group: Group, members: ReplicaSet) -> None:
    eventually(members.primary).kill()
    eventually(members.primary)


def move_mongodb(group: Group, members: ReplicaSet) -> None:
    members.step_down()


@pytest.mark.parametrize("fault", [kill_redis, move_redis, kill_mongodb, move_mongodb])
def test_every_process_continues_with_the_new_primary(
    fault: Callable[[Group, ReplicaSet], None],
    group: Group,
    members: ReplicaSet,
    tmp_path: Path,
    figure: Callable[[str], None],
) -> None:
    with processes(tmp_path, REDIS_URL=group.url, MONGO_DB_URL=members.url) as running:
        with under_load(running) as load:
            began = time.monotonic()
            fault(group, members)
            elected = time.monotonic()
            for kind in KINDS:
                eventually(lambda kind=kind: load.succeeded(kind, elected) >= 3)
            gaps = ", ".join(f"{kind} {load.longest_gap(kind, began):.1f} s" for kind in KINDS)
            followed = {kind: load.first_success(kind, elected) or 0.0 for kind in KINDS}
            after = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in followed.items())
            figure(
                f"{fault.__name__}: new primary after {elected - began:.1f} s; then first success of {after}; "
                f"longest interruption of {gaps}"
            )
            assert {kind: seconds for kind, seconds in followed.items() if seconds > FOLLOWS_WITHIN} == {}
            # Events that the web process missed come once more, when it had a minute to subscribe again.
            eventually(partial(load.require_events, [*load.rooms]), within=100)
        eventually(lambda: job.jobs().count_documents({"state": {"$ne": "success"}}) == 0)
        eventually(lambda: all(map(is_open, load.rooms)))
        assert running.worker.is_alive()
        assert running.beat.is_alive()
    assert {len(moments) for moments in woken(load.rooms)} == {1}
