"""The pool of a worker: a semaphore for thousands of waiting callbacks, and pipes that hold a batch."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.asynpool import AsynPool

from queue_manager.batching.pool import PIPE_SIZE, FlatSemaphore, PoolStep, WidePool

MANY = sys.getrecursionlimit() * 3


def test_many_waiting_callbacks_are_called_in_order() -> None:
    semaphore, called = FlatSemaphore(2), list[int]()

    def leave(number: int) -> None:
        called.append(number)
        semaphore.release()

    for _ in range(2):
        semaphore.acquire(lambda: None)
    for number in range(MANY):
        semaphore.acquire(leave, number)
    assert called == []
    semaphore.release()
    assert called == list(range(MANY))
    assert semaphore.value == 1


def test_an_error_in_a_callback_does_not_leak_a_slot() -> None:
    semaphore, called = FlatSemaphore(1), list[str]()

    def fail() -> None:
        semaphore.release()
        raise ValueError

    semaphore.acquire(lambda: None)
    semaphore.acquire(fail)
    semaphore.acquire(called.append, "next")
    with pytest.raises(ValueError):
        semaphore.release()
    semaphore.release()
    assert (called, semaphore.value) == (["next"], 1)


@contextmanager
def queues() -> Iterator[Any]:
    """Make the queues between a worker and one process."""
    without_processes: Any = WidePool.__new__(WidePool)
    without_processes.synack = False
    jobs, results, _ = without_processes.create_process_queues()
    try:
        yield jobs, results
    finally:
        jobs.close()
        results.close()


def test_pipes_are_enlarged_to_hold_a_batch() -> None:
    with queues() as (jobs, results):
        assert [fcntl.fcntl(one._writer, fcntl.F_GETPIPE_SZ) for one in (jobs, results)] == [PIPE_SIZE] * 2


def test_pipes_work_if_they_cannot_be_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("more pages than the user may have")

    monkeypatch.setattr("fcntl.fcntl", refuse)
    with queues() as (jobs, _):
        jobs.put("a job")
        assert jobs.get() == "a job"


def test_prefork_worker_uses_the_wide_pool_and_the_flat_semaphore() -> None:
    of_processes = SimpleNamespace(Pool=AsynPool, options={})
    worker = SimpleNamespace(semaphore=object(), min_concurrency=2, pool=of_processes)
    PoolStep(worker).create(worker)
    assert of_processes.Pool is WidePool
    assert worker.semaphore is of_processes.options["semaphore"]
    assert isinstance(worker.semaphore, FlatSemaphore)


def test_threads_worker_keeps_its_pool_and_semaphore() -> None:
    worker = SimpleNamespace(semaphore=None, pool=SimpleNamespace())
    PoolStep(worker).create(worker)
    assert vars(worker) == {"semaphore": None, "pool": SimpleNamespace()}
