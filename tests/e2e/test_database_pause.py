"""A worker that is cut off from MongoDB takes no items: the other workers execute them, until it is connected again."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bson import ObjectId

from dev.ports import LOOPBACK
from dev.servers import DATABASE
from models.database import server_now
from queue_manager.core.clock import seconds
from queue_manager.core.redis_client import connect
from queue_manager.health_rules import Rule
from queue_manager.telemetry import worker_heartbeats
from tasks.support_snooze import scan_expired_snoozes
from tests.e2e.celery_processes import CeleryProcess, worker
from tests.e2e.health_command import SLOW, health
from tests.e2e.tcp_proxy import TcpProxy
from tests.e2e.watching import is_open, woken
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = pytest.mark.crash

ROOMS = 300
LATER_PING = seconds(5)  # in which another ping is made and fails
CUT_OFF, OTHER = "cut-off@here", "other@here"


def item_worker(directory: Path, name: str, env: dict[str, str]) -> CeleryProcess:
    """A worker of the Procfile."""
    arguments = ("--exclude-queues", "scans,jobs", "--prefetch-multiplier", "1500", "--hostname", name)
    return worker(directory / f"{name}.log", *arguments, env=env)


def paused(servers: Servers) -> dict[str, str | None]:
    """Return, by worker, why it takes no items."""
    with connect(servers.valkey.url) as client:
        return {one.name: one.paused for one in worker_heartbeats.online(client)}


def dispatch(count: int, *, soon: float = 0) -> list[ObjectId]:
    """Dispatch rooms that are due now, or soon."""
    rooms = [make_room(server_now() + seconds(soon)) for _ in range(count)]
    scan_expired_snoozes()
    return rooms


@pytest.mark.parametrize(
    "env",
    [{}, {"QM_BATCHING": "false"}, {"QM_BROKER": "stock"}],
    ids=["batches", "one by one", "stock transport"],
)
def test_items_are_executed_by_a_worker_that_reaches_mongodb(
    env: dict[str, str], clean: Servers, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with TcpProxy(clean.mongo.port) as proxy:
        through_proxy = f"mongodb://{LOOPBACK}:{proxy.port}/{DATABASE}?directConnection=true"
        cut_off = item_worker(tmp_path, CUT_OFF, {**env, "MONGO_DB_URL": through_proxy})
        other = item_worker(tmp_path, OTHER, env)
        with cut_off.start(ready=False), other:
            eventually(lambda: paused(clean) == {CUT_OFF: None, OTHER: None})
            first = dispatch(20)
            eventually(lambda: all(map(is_open, first)))

            with proxy.cut_off():
                began = time.monotonic()
                rooms = [*dispatch(ROOMS // 2), *dispatch(ROOMS // 2, soon=4)]
                eventually(lambda: all(map(is_open, rooms)))
                figure(
                    f"rooms open, {ids(env)}, after one of two workers lost MongoDB: {time.monotonic() - began:.1f} s"
                )
                eventually(lambda: paused(clean)[CUT_OFF])
                later = dispatch(ROOMS)
                eventually(lambda: all(map(is_open, later)))

                found = health(tmp_path, **SLOW, **env)
                (text,) = [one["text"] for one in found.state["problems"] if one["rule"] == Rule.PAUSED_WORKERS.id]
                assert text.startswith(
                    f"1 of 2 workers cannot reach MongoDB and cannot take items: {CUT_OFF}: MongoDB does not answer"
                )
                assert paused(clean)[OTHER] is None

            eventually(lambda: paused(clean) == {CUT_OFF: None, OTHER: None})
            other.stop()
            last = dispatch(20)
            eventually(lambda: all(map(is_open, last)))
            assert cut_off.is_alive()
    assert [len(moments) for moments in woken([*rooms, *later, *last])] == [1] * (2 * ROOMS + 20)


def ids(env: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in env.items()) or "in batches"


def test_a_worker_that_consumes_only_scans_does_not_pause(clean: Servers, tmp_path: Path) -> None:
    with TcpProxy(clean.mongo.port) as proxy:
        env = {"MONGO_DB_URL": f"mongodb://{LOOPBACK}:{proxy.port}/{DATABASE}?directConnection=true"}
        scans = worker(tmp_path / "scans.log", "--queues", "scans", "--hostname", OTHER, env=env)
        with item_worker(tmp_path, CUT_OFF, env), scans:
            eventually(lambda: paused(clean) == {CUT_OFF: None, OTHER: None})
            with proxy.cut_off():
                eventually(lambda: paused(clean)[CUT_OFF])
                seen_until = server_now_of(clean) + LATER_PING
                eventually(lambda: was_seen_after(clean, OTHER, seen_until))
                assert paused(clean)[OTHER] is None


def leases(servers: Servers) -> dict[str, int]:
    with connect(servers.valkey.url) as client:
        return {state: int(client.zcard(f"qm:lease:support-snooze:{state}")) for state in ("waiting", "running")}


def server_now_of(servers: Servers) -> datetime:
    """Return the time of Redis."""
    with connect(servers.valkey.url) as client:
        second, micros = client.time()
    return datetime.fromtimestamp(second + micros / 1_000_000, UTC)


def was_seen_after(servers: Servers, name: str, moment: datetime) -> bool:
    with connect(servers.valkey.url) as client:
        return any(one.name == name and one.seen_at > moment for one in worker_heartbeats.online(client))


@pytest.mark.parametrize(
    ("env", "number"), [({}, ROOMS), ({"QM_BATCHING": "false"}, 1_000)], ids=["batches", "one by one"]
)
def test_the_only_worker_executes_its_requeued_items(
    env: dict[str, str], number: int, clean: Servers, tmp_path: Path
) -> None:
    with TcpProxy(clean.mongo.port) as proxy:
        through_proxy = f"mongodb://{LOOPBACK}:{proxy.port}/{DATABASE}?directConnection=true"
        with item_worker(tmp_path, CUT_OFF, {**env, "MONGO_DB_URL": through_proxy}) as process:
            first = dispatch(5)
            eventually(lambda: all(map(is_open, first)))
            with proxy.cut_off():
                rooms = dispatch(number)
                eventually(lambda: "takes no items until MongoDB answers" in process.log)
                # They wait for a worker, however long that takes, and are not dispatched again when a lease ends.
                eventually(lambda: leases(clean) == {"waiting": number, "running": 0})
            eventually(lambda: all(map(is_open, rooms)))
            eventually(lambda: "takes items again" in process.log)
