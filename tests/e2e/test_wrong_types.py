"""Keys in Redis of another type, which another program has written: what fails because of one names it."""

from __future__ import annotations

import pytest

from models.database import server_now
from queue_manager.beat.leader_lock import LEADER_LOCK
from queue_manager.core.clock import seconds
from queue_manager.core.redis_client import connect
from queue_manager.leases import Leases
from queue_manager.pauses import PAUSES_KEY
from queue_manager.telemetry.worker_heartbeats import WORKERS_KEY
from tests.e2e.commands import invoke
from tests.real_servers import Servers
from tests.rooms import make_room

RUNNING = Leases("support-snooze").keys.running


@pytest.mark.parametrize(
    ("key", "kind", "command"),
    [
        (WORKERS_KEY, "sorted set", "workers"),
        (LEADER_LOCK, "hash", "systems schedule"),
        (PAUSES_KEY, "hash", "why 65a1b2c3d4e5f60718293a4b"),
        (PAUSES_KEY, "hash", "scan support-snooze"),
        (RUNNING, "sorted set", "scan support-snooze"),
    ],
)
def test_an_error_names_the_key_its_type_and_what_to_do(key: str, kind: str, command: str, clean: Servers) -> None:
    make_room(server_now() - seconds(5))
    with connect(clean.valkey.url) as client:
        client.set(key, "of another program")
    result = invoke(*command.split())
    wanted = f"In Redis, {key} is a string, and must be a {kind}. Another program wrote it: rename or delete the key"
    assert wanted in result.stdout + result.stderr
