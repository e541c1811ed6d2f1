"""Notification of waiting consumers about new messages, over one connection per process.

A script cannot block, so a consumer that finds no message subscribes here and tries again when notified. No message is
delivered by a notification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any

import redis

from queue_manager.core.log import get_logger
from queue_manager.core.redis_client import outage
from services.message_queue.scripts import server_name

READ_BLOCK_TIMEOUT = 2.0  # seconds that one XREAD blocks; the socket timeout must be longer
READ_RETRY_DELAY = 0.5  # seconds
ARRIVALS_PER_READ = 100  # entries per XREAD

log = get_logger("QM/message-queue")


class ArrivalNotifier:
    """Notifies one waiting consumer per new message, longest waiting first.

    Args:
        connect: returns a client whose socket timeout is longer than `READ_BLOCK_TIMEOUT`.
        streams: the streams of all priorities; the first is named as the queue.
    """

    def __init__(self, connect: Callable[[], redis.Redis], streams: Sequence[str]) -> None:
        self._connect, self._streams = connect, streams
        self._resumes = f"{streams[0]}:resumes".encode()
        self._subscribers: list[tuple[str | None, Future[None]]] = []
        self._changed = Condition()
        self._thread: Thread | None = None
        self._is_reading = False

    def subscribe(self, type: str | None = None) -> Future[None]:
        """Return a future that completes when a message arrives after this call. `unsubscribe` it if it is not used.

        Every message wakes all consumers that wait for a type, because the entry's type is not read.
        """
        arrival: Future[None] = Future()
        with self._changed:
            self._subscribers.append((type, arrival))
            if self._thread is None or not self._thread.is_alive():
                self._is_reading = False
                self._thread = Thread(target=self._run, name="arrivals", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            # Once reading, the reader knows the end of each stream, so no later message is missed. The reader may
            # already have notified this consumer and stopped before this thread resumes.
            self._changed.wait_for(lambda: self._is_reading or arrival.done(), timeout=READ_BLOCK_TIMEOUT)
        return arrival

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._has_subscribers():
                    self._is_reading = False
                    self._changed.wait()
            try:
                with self._connect() as client:
                    self._read(client)
            except redis.RedisError as error:
                log.warning(f"{server_name()} {outage(error)}; waiting consumers try again")
                time.sleep(READ_RETRY_DELAY)
                with self._changed:
                    self._is_reading = False
                    self.wake(len(self._subscribers) + 1)

    def _read(self, client: redis.Redis) -> None:
        ends: dict[Any, Any] = {stream.encode(): self._end_of(client, stream) for stream in self._streams}
        ends[self._resumes] = self._end_of(client, self._resumes.decode())
        with self._changed:
            self._is_reading = True
            self._changed.notify_all()
        while True:
            with self._changed:
                if not self._has_subscribers():
                    self._is_reading = False  # later subscribers wait for the next read loop
                    return
            arrived = 0
            read: Any = client.xread(ends, count=ARRIVALS_PER_READ, block=int(READ_BLOCK_TIMEOUT * 1000))
            for stream, entries in read:
                # Resuming a type may make many messages available.
                arrived += len(self._subscribers) if stream == self._resumes else len(entries)
                ends[stream] = entries[-1][0]
            self.wake(arrived)

    @staticmethod
    def _end_of(client: redis.Redis, stream: str) -> bytes | str:
        try:
            return client.xinfo_stream(stream)["last-generated-id"]  # type: ignore[no-any-return]
        except redis.ResponseError:
            return "0-0"  # no such stream yet

    def _has_subscribers(self) -> bool:
        self._subscribers = [(type, arrival) for type, arrival in self._subscribers if not arrival.done()]
        return bool(self._subscribers)

    def wake(self, count: int) -> None:
        """Notify `count` consumers of any type, and those of a specific type that have waited longer than the last."""
        with self._changed:
            rest: list[tuple[str | None, Future[None]]] = []
            for type, arrival in self._subscribers:
                if count <= 0:
                    rest.append((type, arrival))
                elif arrival.set_running_or_notify_cancel():
                    arrival.set_result(None)
                    count -= type is None
            self._subscribers = rest
            self._changed.notify_all()

    def unsubscribe(self, arrival: Future[None]) -> None:
        """Stop waiting. A notification that was not used is passed to the next consumer."""
        if not arrival.cancel():
            self.wake(1)
