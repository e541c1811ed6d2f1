"""A request that is requeued while a rate limit delays it is not executed by this worker."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state
from kombu.utils.limits import TokenBucket

from queue_manager.batching.request import ItemRequest
from queue_manager.broker.consumer import Consumer


class ReceivedRequest(ItemRequest):
    def __init__(self, id: str) -> None:
        self.id = id
        self._already_revoked = False
        self.rejected: list[bool] = []

    def reject(self, requeue: bool = False) -> None:
        self.rejected.append(requeue)


class LimitedConsumer(Consumer):
    """One whose pool only records what reaches it."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def on_task_request(self, request: ReceivedRequest) -> None:
        self.executed.append(request.id)


@pytest.fixture
def bucket() -> Iterator[TokenBucket]:
    yield TokenBucket(1_000, capacity=3)
    for request in list(state.reserved_requests):
        state.task_ready(request)


def test_rate_limited_request_that_was_requeued_is_not_executed(bucket: TokenBucket) -> None:
    consumer = LimitedConsumer()
    kept, put_back = ReceivedRequest("kept"), ReceivedRequest("put back")
    for request in (kept, put_back):
        state.task_reserved(request)
        bucket.add((request, 1))
    put_back.put_back(consumer)

    consumer._schedule_bucket_request(bucket)

    assert (consumer.executed, put_back.rejected) == (["kept"], [True])
    # The worker's state belongs to the whole process: other tests' requests may be reserved as well.
    assert kept in state.reserved_requests
    assert put_back not in state.reserved_requests
    assert put_back.id not in state.requests


def test_request_that_waited_for_its_eta_does_not_count_as_prefetched_after_it_was_requeued() -> None:
    done: list[Any] = []
    qos = SimpleNamespace(decrement_eventually=lambda: done.append("decremented"))
    consumer = SimpleNamespace(timer=SimpleNamespace(cancel=done.append), qos=qos)
    request = ReceivedRequest("waiting")
    request._eta_timer_entry = "its timer"
    state.task_scheduled(request)

    request.put_back(consumer)

    assert (done, request.rejected) == (["its timer", "decremented"], [True])
    assert request not in state.scheduled_requests
