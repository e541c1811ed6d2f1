"""The queue for coroutines: concurrent calls share a round trip, and each gets its own result."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from services.message_queue import AsyncMessageQueue, LockLost, QueueFull, QueueUnavailable
from services.message_queue.async_queue import MAX_CALLS_PER_ROUND_TRIP
from services.message_queue.scripts import ScriptCall
from tests.eventually import eventually
from tests.services.message_queue.message_lab import Lab


@pytest.fixture
def queue(lab: Lab) -> AsyncMessageQueue:
    return AsyncMessageQueue(lab.scripts, lab.queue.options)


@pytest.fixture
def round_trips(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the scripts of each round trip."""
    sent: list[list[str]] = []
    run_all = lab.scripts.run_all

    def recorded(calls: Sequence[ScriptCall]) -> list[Any]:
        sent.append([name for name, _ in calls])
        return run_all(calls)

    monkeypatch.setattr(lab.scripts, "run_all", recorded)
    return sent


def together(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return the results or errors of concurrent calls."""

    async def run() -> list[Any]:
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


def enqueue(queue: AsyncMessageQueue, id: str) -> Coroutine[Any, Any, Any]:
    return queue.enqueue([{"type": "job", "id": id}])


def test_concurrent_calls_share_a_round_trip_in_order(queue: AsyncMessageQueue, round_trips: list[list[str]]) -> None:
    ids = [f"job-{number}" for number in range(MAX_CALLS_PER_ROUND_TRIP + 20)]

    results = together(*(enqueue(queue, id) for id in ids))
    messages = together(*(queue.take() for _ in ids[:3]))

    assert [added.id for (added,) in results] == ids
    assert round_trips == [["enqueue"] * MAX_CALLS_PER_ROUND_TRIP, ["enqueue"] * 20, ["dequeue"] * 3]
    assert [message.id for message in messages] == ids[:3]


def test_each_call_gets_its_own_error(lab: Lab, queue: AsyncMessageQueue) -> None:
    for id in ("first", "second", "third"):
        lab.queue.enqueue("job", id=id)
    first, second, third = lab.take(), lab.take(), lab.take()

    acked, refused, requeued, touched = together(
        queue.ack(first.id, first.lock_token),
        queue.ack(second.id, "wrong"),
        queue.nack(second.id, second.lock_token),
        queue.touch(third.id, third.lock_token, extend_seconds=60),
    )

    assert (acked, requeued, touched.extended_by.total_seconds()) == (None, True, 60)
    assert isinstance(refused, LockLost)


def test_scripts_are_loaded_again_after_the_server_lost_them(lab: Lab, queue: AsyncMessageQueue) -> None:
    together(enqueue(queue, "before"))
    lab.client.script_flush()

    results = together(enqueue(queue, "a"), queue.take(), enqueue(queue, "b"))

    assert results[1].id == "before"
    assert {lab.take().id, lab.take().id} == {"a", "b"}


def test_a_cancelled_call_does_not_affect_others(lab: Lab, queue: AsyncMessageQueue) -> None:
    async def run() -> Any:
        given_up = asyncio.create_task(enqueue(queue, "given-up"))
        kept = asyncio.create_task(enqueue(queue, "kept"))
        await asyncio.sleep(0)  # both have begun
        given_up.cancel()
        return await kept

    ((added),) = asyncio.run(run())
    assert added.is_new
    assert {lab.take().id, lab.take().id} == {"given-up", "kept"}


def test_a_cancelled_caller_receives_no_message(
    lab: Lab, queue: AsyncMessageQueue, round_trips: list[list[str]]
) -> None:
    lab.queue.enqueue("job", id="only")

    async def run() -> Any:
        given_up = [asyncio.create_task(queue.take()), asyncio.create_task(queue.take(type="job"))]
        await asyncio.sleep(0)  # they have begun
        for one in given_up:
            one.cancel()
        return await queue.take()

    assert asyncio.run(run()).id == "only"
    assert round_trips == [["dequeue"]]


def test_a_full_server_refuses_only_enqueues(lab: Lab, queue: AsyncMessageQueue) -> None:
    lab.queue.enqueue("job", id="held")
    held = lab.take()
    lab.client.config_set("maxmemory", 1)

    refused, acked = together(enqueue(queue, "one-more"), queue.ack(held.id, held.lock_token))

    assert isinstance(refused, QueueFull)
    assert acked is None


def test_every_concurrent_call_raises_the_outage(
    lab: Lab, queue: AsyncMessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = lab.scripts.client.connection_pool.connection_kwargs
    with monkeypatch.context() as outage:
        outage.setitem(options, "port", 1)
        lab.scripts.client.connection_pool.disconnect()
        lab.scripts.client.connection_pool.reset()
        refused = together(enqueue(queue, "a"), queue.take())
    lab.scripts.client.connection_pool.reset()

    assert [type(error) for error in refused] == [QueueUnavailable, QueueUnavailable]
    assert together(enqueue(queue, "b"), queue.take())[1].id == "b"


LIMIT = 10.0  # seconds


@pytest.fixture
def slow_answer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> tuple[Event, Event]:
    """Set when the first round trip is on its way, and to be set so that it ends."""
    sent, may_end = Event(), Event()
    run_all = lab.scripts.run_all

    def slow(calls: Sequence[ScriptCall]) -> list[Any]:
        sent.set()
        assert may_end.wait(LIMIT)
        return run_all(calls)

    monkeypatch.setattr(lab.scripts, "run_all", slow)
    return sent, may_end


def test_loops_of_several_threads_use_one_queue(queue: AsyncMessageQueue, slow_answer: tuple[Event, Event]) -> None:
    sent, may_end = slow_answer

    async def enqueue_first() -> Any:
        return await asyncio.wait_for(enqueue(queue, "first"), LIMIT)

    async def enqueue_second() -> Any:
        call = asyncio.create_task(enqueue(queue, "second"))
        await asyncio.sleep(0)  # it has begun
        may_end.set()
        return await asyncio.wait_for(call, LIMIT)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(lambda: asyncio.run(enqueue_first()))
        assert sent.wait(LIMIT)
        second = threads.submit(lambda: asyncio.run(enqueue_second()))
        assert [added.id for called in (first, second) for added in called.result()] == ["first", "second"]


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_program_that_ends_can_reject_its_message(
    lab: Lab, queue: AsyncMessageQueue, slow_answer: tuple[Event, Event], is_sent: bool
) -> None:
    lab.queue.enqueue("job", id="held", priority=3)
    held = lab.take()
    sent, may_end = slow_answer

    async def consume() -> None:
        try:
            await asyncio.sleep(LIMIT)
        finally:
            await queue.nack(held.id, held.lock_token)

    async def run() -> None:
        consumer = asyncio.create_task(consume())
        call = asyncio.create_task(enqueue(queue, "other"))
        await asyncio.sleep(0)  # both have begun
        if is_sent:
            await asyncio.to_thread(sent.wait, LIMIT)
        others = asyncio.all_tasks() - {consumer, asyncio.current_task()}
        for task in (consumer, *others):  # as asyncio does when a program ends, also with what sends the calls
            task.cancel()
        may_end.set()
        done, _ = await asyncio.wait([consumer, call], timeout=LIMIT)
        assert done == {consumer, call}

    asyncio.run(run())
    assert lab.take().id == "held"


def test_nothing_is_kept_of_a_loop_that_ended(queue: AsyncMessageQueue) -> None:
    async def run() -> None:
        asyncio.create_task(enqueue(queue, "given-up"))  # noqa: RUF006
        await enqueue(queue, "kept")

    asyncio.run(run())

    def is_empty() -> bool:
        gc.collect()
        return not queue._loops

    eventually(is_empty)
