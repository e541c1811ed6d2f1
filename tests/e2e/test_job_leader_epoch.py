"""Redis loses its data while jobs are on: they go on within two periods, under a leader with a higher epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from models import job_queue
from queue_manager.beat.leader_lock import LEADER_LOCK, epoch_key
from queue_manager.beat.status import leadership
from tests.e2e.job_processes import count, job_beat, job_lab, job_worker
from tests.eventually import eventually
from tests.real_servers import Servers

pytestmark = pytest.mark.crash


def test_jobs_run_soon_after_redis_was_emptied(clean: Servers, tmp_path: Path) -> None:
    lab = job_lab()
    with redis.Redis.from_url(clean.valkey.url) as client:
        client.set(epoch_key(LEADER_LOCK), 41)
        with job_worker(tmp_path) as worker, job_beat(tmp_path):
            lab.run("now")
            eventually(lambda: count("success", "now") == 1)
            assert job_queue.leader_epoch() == 42

            client.flushall()
            eventually(lambda: job_queue.leader_epoch() == 43, within=30)  # half of the silence that was waited for
            lab.run("now")
            eventually(lambda: count("success", "now") == 2)

            leads = eventually(lambda: leadership(client, LEADER_LOCK))
            assert leads.epoch == job_queue.leader_epoch() == 43
            assert worker.log.count("Redis had lost the epoch") == 1
