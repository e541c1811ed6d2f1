"""Waiting for messages: one connection of its own for a whole process, however many consumers wait.

A script cannot block, so a consumer that found nothing waits here until a message arrived, and asks again. Nothing is
taken while it waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any

import redis

from queue_manager.core.errors import reason
from queue_manager.core.log import get_logger

BLOCK = 2.0  # seconds that one XREAD waits; its connection's own timeout must be longer
PAUSE = 0.5  # seconds after a failure
MOST_AT_ONCE = 100  # entries told of by one XREAD

log = get_logger("QM/message-queue")


class Arrivals:
    """Tells those who wait that a message has arrived, as many of them as messages; the longest waiting first.

    Args:
        connect: makes a client whose commands may take longer than `BLOCK`.
        streams: the streams that are read, those of all priorities.
    """

    def __init__(self, connect: Callable[[], redis.Redis], streams: Sequence[str]) -> None:
        self._connect, self._streams = connect, streams
        self._waiting: list[tuple[str | None, Future[None]]] = []
        self._change = Condition()
        self._thread: Thread | None = None
        self._is_reading = False

    def expect(self, type: str | None = None) -> Future[None]:
        """Return what is done when a message has arrived after this moment. `release` it unless it was looked at.

        A message for a consumer of a type wakes every consumer of a type, since the entry does not tell it.
        """
        arrival: Future[None] = Future()
        with self._change:
            self._waiting.append((type, arrival))
            if self._thread is None or not self._thread.is_alive():
                self._is_reading = False
                self._thread = Thread(target=self._run, name="arrivals", daemon=True)
                self._thread.start()
            self._change.notify_all()
            # From here on the reader knows where the streams ended, so that nothing which comes now is missed.
            # It may have come, and the reader stopped again, before this thread ran.
            self._change.wait_for(lambda: self._is_reading or arrival.done(), timeout=BLOCK)
        return arrival

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._live():
                    self._is_reading = False
                    self._change.wait()
            try:
                with self._connect() as client:
                    self._read(client)
            except redis.RedisError as error:
                log.warning("Waiting consumers look again: the queue's server does not answer", error=reason(error))
                time.sleep(PAUSE)
                with self._change:
                    self._is_reading = False
                    self._wake_all()

    def _read(self, client: redis.Redis) -> None:
        ends: dict[Any, Any] = {stream.encode(): self._end_of(client, stream) for stream in self._streams}
        with self._change:
            self._is_reading = True
            self._change.notify_all()
        while True:
            with self._change:
                if not self._live():
                    self._is_reading = False  # who comes from here on waits for the next reading
                    return
            arrived = 0
            for stream, entries in _answer(client.xread(ends, count=MOST_AT_ONCE, block=int(BLOCK * 1000))):
                ends[stream], arrived = entries[-1][0], arrived + len(entries)
            self.wake(arrived)

    @staticmethod
    def _end_of(client: redis.Redis, stream: str) -> bytes | str:
        try:
            return client.xinfo_stream(stream)["last-generated-id"]  # type: ignore[no-any-return]
        except redis.ResponseError:
            return "0-0"  # no such stream yet

    def _live(self) -> bool:
        self._waiting = [(type, arrival) for type, arrival in self._waiting if not arrival.done()]
        return bool(self._waiting)

    def wake(self, count: int) -> None:
        """Tell `count` of those who wait for any type, and all who wait for a certain one, to look again."""
        with self._change:
            rest: list[tuple[str | None, Future[None]]] = []
            for type, arrival in self._waiting:
                if count <= 0:
                    rest.append((type, arrival))
                elif arrival.set_running_or_notify_cancel():
                    arrival.set_result(None)
                    count -= type is None
            self._waiting = rest
            self._change.notify_all()

    def release(self, arrival: Future[None]) -> None:
        """Stop waiting. What arrived for one who does not look any more is passed on to the next."""
        if not arrival.cancel():
            self.wake(1)

    def _wake_all(self) -> None:
        self.wake(len(self._waiting) + 1)


def _answer(read: Any) -> list[tuple[bytes, list[Any]]]:
    """Return the streams and entries of an XREAD, which are a list or, by the newer protocol, a mapping."""
    pairs = read.items() if isinstance(read, dict) else read or []
    return [(stream, entries) for stream, entries in pairs if entries]
