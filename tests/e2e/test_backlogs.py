"""One scan sends a backlog longer than the limit of the queue, while workers execute it."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from models import scan_run, support_room
from models.database import server_now
from queue_manager.core.clock import seconds
from tasks import app
from tests.e2e.celery_processes import worker
from tests.eventually import eventually
from tests.real_servers import Servers
from tests.rooms import make_room

pytestmark = pytest.mark.scale

QUEUE, SCAN = "support-snooze", "tasks.support_snooze.scan_expired_snoozes"
LIMIT, DUE = 100, 1_000
ENV = {"QM_MAX_QUEUE": str(LIMIT), "QM_CLAIM_BATCH": "50", "QM_SNOOZE_SCAN_SECONDS": "60"}


@pytest.fixture
def rooms(clean: Servers) -> None:
    due_at = server_now() - seconds(10)
    for _ in range(DUE):
        make_room(due_at)


@pytest.mark.usefixtures("rooms")
def test_backlog_beyond_the_limit_of_the_queue_drains_in_one_scan(tmp_path: Path, clean: Servers) -> None:
    lengths = []

    def is_drained() -> bool:
        lengths.append(client.llen(QUEUE))
        return support_room.rooms().count_documents({"status": "open"}) == DUE

    with redis.Redis.from_url(clean.valkey.url) as client, worker(tmp_path / "worker.log", env=ENV):
        app.send_task(SCAN, queue="scans")
        eventually(is_drained)
        run = eventually(lambda: scan_run.last(SCAN))
    assert (run.found, run.enqueued, run.errors) == (DUE, DUE, 0)
    assert max(lengths) <= LIMIT


@pytest.mark.smoke
@pytest.mark.usefixtures("rooms")
def test_scan_ends_at_the_limit_without_a_worker(tmp_path: Path, clean: Servers) -> None:
    with redis.Redis.from_url(clean.valkey.url) as client:
        with worker(tmp_path / "worker.log", "--queues", "scans", env=ENV):
            app.send_task(SCAN, queue="scans")
            run = eventually(lambda: scan_run.last(SCAN))
        assert run.enqueued == client.llen(QUEUE) == LIMIT
