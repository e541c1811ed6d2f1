"""The heartbeat of a worker, and the activity in it."""

from __future__ import annotations

import os

import pytest
from celery.concurrency.prefork import TaskPool

from queue_manager.broker.consumer import WORKER_EVENT_INTERVAL
from queue_manager.core.redis_client import connect
from queue_manager.telemetry import worker_heartbeats
from queue_manager.telemetry.worker_heartbeats import KEYS, WORKERS_KEY, Activity
from queue_manager.worker.activity import Sampler
from tests.real_servers import Servers


def test_a_worker_whose_pool_has_ended_reports_no_activity() -> None:
    sampler, pool = Sampler(), TaskPool(1, forking_enable=True, threads=False)
    sampler.watch(pool)
    pool.start()
    activity = sampler.sample()
    assert activity is not None
    assert (activity.pool, activity.size, len(activity.processes)) == ("prefork", 1, 1)
    pool.terminate()
    assert sampler.sample() is None


def test_a_worker_of_which_one_heartbeat_is_lost_stays_online(clean: Servers) -> None:
    worker_heartbeats.record("one@here")
    with connect(clean.valkey.url) as client:
        (member,) = client.zrange(WORKERS_KEY, 0, -1)
        client.zincrby(WORKERS_KEY, -2 * WORKER_EVENT_INTERVAL * 1000, member)
        assert [worker.name for worker in worker_heartbeats.online(client)] == ["one@here"]
        client.zincrby(WORKERS_KEY, -2 * WORKER_EVENT_INTERVAL * 1000, member)
        assert worker_heartbeats.online(client) == []
    worker_heartbeats.remove("one@here")


def test_full_heartbeats_delete_what_lost_workers_have_reported(
    clean: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    activity = Activity(pool="prefork", size=1, busy=0, done_per_minute=0)
    names = ("lost@here", "one@here")
    with connect(clean.valkey.url) as client:
        for name in names:
            worker_heartbeats.record(name, activity=activity)
        client.zincrby(WORKERS_KEY, -60_000, f"lost@here {os.getpid()}")
        worker_heartbeats.record("one@here", activity=activity)  # nothing has changed: only the time
        assert client.zcard(WORKERS_KEY) == 2
        monkeypatch.setattr(worker_heartbeats, "FULL_INTERVAL", 0.0)
        worker_heartbeats.record("one@here", activity=activity)
        members = [client.zrange(KEYS[0], 0, -1), *(client.hkeys(key) for key in KEYS[1:])]
    for name in names:
        worker_heartbeats.remove(name)
    assert members == [[f"one@here {os.getpid()}"]] * 3
