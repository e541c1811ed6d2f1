"""Work next to the caller: a task or a thread while a block runs, and a thread for the blocking calls of coroutines."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeAlias, TypeVar

CANCEL_AGAIN_AFTER = 1.0  # seconds


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended.

    More than once: in Python 3.11, `asyncio.wait_for` loses a cancellation that comes together with its result, and
    redis-py sends each command by it. The task would never end.
    """
    while left := {task for task in tasks if not task.done()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=CANCEL_AGAIN_AFTER)


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` while the block runs; cancel it when the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await cancel([task])
        with suppress(asyncio.CancelledError):
            await task


@contextmanager
def in_thread(work: Callable[[Event], object], *, name: str) -> Iterator[None]:
    """Run `work` in a thread while the block runs. Its event is set when the block ends, which then waits for it."""
    is_over = Event()
    thread = Thread(target=work, args=[is_over], name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class ServiceThread:
    """Runs `work` in a thread from `start` to `stop`, which sets its event. It may be started again."""

    def __init__(self, work: Callable[[Event], object], *, name: str) -> None:
        self._work, self._name = work, name
        self._is_over: Event | None = None

    def start(self) -> None:
        """Begin; a second call before `stop` changes nothing."""
        if self._is_over is None:
            self._is_over = Event()
            Thread(target=self._work, args=[self._is_over], name=self._name, daemon=True).start()

    def stop(self) -> None:
        if self._is_over is not None:
            self._is_over.set()
            self._is_over = None


T = TypeVar("T")
Calls: TypeAlias = "SimpleQueue[Callable[[], None] | None]"


class CallThread:
    """Runs blocking calls in their order. The thread starts with the first call, and ends with this object.

    A call costs half as much as with an executor of one thread, which creates another future with a condition for each.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: Calls | None = None

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` in the thread and return its result. Raises its error.

        If the caller is cancelled, the call is made nevertheless.
        """
        if self._calls is None:
            calls: Calls = SimpleQueue()
            Thread(target=_make_calls, args=[calls], name=self._name, daemon=True).start()
            weakref.finalize(self, calls.put, None)
            self._calls = calls
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put(partial(_call, function, arguments, future, loop))
        return await future


async def call_within(limit: float, function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` in a thread of its own and return its result. Raises its error.

    Raises TimeoutError: it takes longer than `limit` seconds. Its thread is left alone, also when the process ends.
    """
    return await asyncio.wait_for(CallThread("limited call").run(function, *arguments), limit)


def _make_calls(calls: Calls) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # with its arguments, rather than when the next one comes


def _call(
    function: Callable[..., T], arguments: tuple[Any, ...], future: asyncio.Future[T], loop: asyncio.AbstractEventLoop
) -> None:
    finish: Callable[[], None]
    try:
        finish = partial(future.set_result, function(*arguments))
    except Exception as error:
        finish = partial(future.set_exception, error)
    with suppress(RuntimeError):  # the loop is closed, so that nobody waits
        loop.call_soon_threadsafe(_finish, future, finish)


def _finish(future: asyncio.Future[Any], finish: Callable[[], None]) -> None:
    if not future.done():  # the caller was cancelled
        finish()
