"""A rate limit on an item task: items that it holds back keep their leases."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from bson import ObjectId

from models.database import server_now
from queue_manager.core.clock import seconds
from tasks import app
from tasks.support_snooze import scan_expired_snoozes, unsnooze_room
from tests.e2e.celery_processes import worker
from tests.e2e.watching import is_open
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.room_lease import lease
from tests.rooms import make_room

pytestmark = pytest.mark.processes

LEASE = 5


def test_items_that_a_rate_limit_holds_back_keep_their_leases(clean: Servers, tmp_path: Path) -> None:
    rooms = [make_room(server_now() - seconds(1)) for _ in range(3)]
    with worker(tmp_path / "log", env={"QM_LEASE_SECONDS": str(LEASE)}) as process:
        with app.connection_for_write() as connection:  # of its own: earlier tests cut those of the pool
            assert app.control.rate_limit(
                unsnooze_room.name, "1/h", reply=True, timeout=10, limit=1, connection=connection
            )
        scan_expired_snoozes.delay()
        eventually(lambda: sum(map(is_open, rooms)) == 1)
        waiting = [room for room in rooms if not is_open(room)]
        began = server_now()

        eventually(lambda: all(ends_at(room) > began + seconds(2 * LEASE) for room in waiting))

        assert process.is_alive()


def ends_at(room: ObjectId) -> datetime:
    until = lease(room).ends_at
    assert until is not None
    return until
