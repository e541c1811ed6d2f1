"""Tasks of the event loop end even if a library swallows a cancellation; blocking calls run in their own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from unittest.mock import Mock

import pytest

from queue_manager.core.background import CallThread, call_within, cancel, in_background
from queue_manager.web.live.event_feed import Feed, ReadBatch
from tests.eventually import eventually
from tests.web.test_event_feed import OneEvent


async def _lose_a_cancellation() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def _go_on() -> None:
    await _lose_a_cancellation()
    await asyncio.Event().wait()


class Deaf(OneEvent):
    """A source that loses a cancellation while it is read."""

    async def live(self, after: int | None) -> AsyncGenerator[ReadBatch[int], None]:
        yield ReadBatch(1, [])
        await _go_on()

    async def close(self) -> None: ...


def test_a_task_that_lost_a_cancellation_is_cancelled_again() -> None:
    async def end() -> bool:
        task = asyncio.create_task(_go_on())
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await cancel([task])
        return task.cancelled()

    assert asyncio.run(end())


def test_a_block_ends_although_a_cancellation_was_lost() -> None:
    async def leave() -> None:
        async with asyncio.timeout(30) as limit, in_background(_go_on()):
            await asyncio.sleep(0)
        assert not limit.expired()  # the block suppresses the cancellation by which the limit ends it

    asyncio.run(leave())


def test_a_feed_ends_although_its_source_swallowed_a_cancellation() -> None:
    async def leave() -> None:
        async with asyncio.timeout(30) as limit, Feed(Deaf(), asyncio.Event()) as feed:
            with feed.subscribe():
                await feed.reader_position()
        assert not limit.expired()

    asyncio.run(leave())


NAME = "calls-of-a-test"


def test_calls_are_made_in_their_order_in_one_thread() -> None:
    thread, made = CallThread(NAME), list[tuple[int, str]]()

    def call(number: int) -> int:
        made.append((number, threading.current_thread().name))
        return -number

    async def call_all() -> list[int]:
        return await asyncio.gather(*(thread.run(call, number) for number in range(20)))

    assert asyncio.run(call_all()) == [-number for number in range(20)]
    assert made == [(number, NAME) for number in range(20)]


def test_an_error_is_raised_and_the_next_call_is_made() -> None:
    thread = CallThread(NAME)
    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(thread.run(int, "x"))
    assert asyncio.run(thread.run(int, "7")) == 7


def test_the_thread_starts_with_the_next_call_if_it_could_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = CallThread(NAME)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            asyncio.run(thread.run(int, "7"))
    assert asyncio.run(asyncio.wait_for(thread.run(int, "7"), 30)) == 7


def test_a_cancelled_caller_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    thread, may_end = CallThread(NAME), threading.Event()

    async def cancel_first() -> tuple[bool, int]:
        cancelled = asyncio.create_task(thread.run(may_end.wait))
        other = asyncio.create_task(thread.run(int, "7"))
        await asyncio.sleep(0)
        cancelled.cancel()
        may_end.set()
        result = await other
        return cancelled.cancelled(), result

    assert asyncio.run(cancel_first()) == (True, 7)
    assert caplog.records == []  # of the event loop, about a result that nobody takes


def test_a_closed_event_loop_does_not_affect_later_calls() -> None:
    thread, may_end = CallThread(NAME), threading.Event()

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await thread.run(may_end.wait)

    asyncio.run(leave())
    may_end.set()
    assert asyncio.run(thread.run(int, "7")) == 7


def test_the_thread_ends_with_its_object() -> None:
    thread = CallThread(NAME)
    running = asyncio.run(thread.run(threading.current_thread))
    assert running.is_alive()
    del thread
    eventually(lambda: not running.is_alive())


def test_a_hanging_limited_call_does_not_keep_the_process_alive() -> None:
    may_end = threading.Event()
    running: list[threading.Thread] = []

    def hang() -> None:
        running.append(threading.current_thread())
        may_end.wait()

    with pytest.raises(TimeoutError):
        asyncio.run(call_within(0.2, hang))
    [thread] = eventually(lambda: running)
    assert thread.is_alive()
    assert thread.daemon
    may_end.set()
    assert asyncio.run(call_within(10, int, "7")) == 7
