"""The activity of a worker in its heartbeat."""

from __future__ import annotations

from celery.concurrency.prefork import TaskPool

from queue_manager.worker.activity import Sampler


def test_a_worker_whose_pool_has_ended_reports_no_activity() -> None:
    sampler, pool = Sampler(), TaskPool(1, forking_enable=True, threads=False)
    sampler.watch(pool)
    pool.start()
    activity = sampler.sample()
    assert activity is not None
    assert (activity.pool, activity.size, len(activity.processes)) == ("prefork", 1, 1)
    pool.terminate()
    assert sampler.sample() is None
