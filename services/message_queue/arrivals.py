"""Notification of waiting consumers about new messages, over one connection per process.

A script cannot block, so a consumer that finds no message subscribes here and tries again when notified. No message is
delivered by a notification.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
# An entry as enqueue.lua adds it, like ENQUEUED in dequeue.lua. Captures the type.
_ENQUEUED = re.compile(
    rb'\{"id":"[^"\\]*","type":"([^"\\]*)","priority":\d+,"created_at":[\d.]+,[\w":.,+-]*?"payload":'
)

log = get_logger("QM/message-queue")


class ArrivalNotifier:
    """Notifies waiting consumers of new messages, longest waiting first.

    For each message, it notifies one consumer of any type and one that waits for the type of the message, because
    either may take another message that arrives at the same time. So of the consumers that wait for a type, as many are
    notified as there are messages for them.

    Args:
        connect: returns a client whose socket timeout is longer than `READ_BLOCK_TIMEOUT`.
        streams: the streams of all priorities; the first is named as the queue.
    """

    def __init__(self, connect: Callable[[], redis.Redis], streams: Sequence[str]) -> None:
        self._connect, self._streams = connect, streams
        self._resumes = f"{streams[0]}:resumes".encode()
        self._subscribers: list[tuple[str | None, Future[str | None]]] = []
        self._changed = Condition()
        self._thread: Thread | None = None
        self._is_reading = False
        self._is_late = False  # whether a consumer has stopped waiting for the reader, and may miss messages

    def subscribe(self, type: str | None = None) -> Future[str | None]:
        """Return a future that completes when a message arrives after `wait_for_reader`. `unsubscribe` it if not used.

        Its result is `type`: what the consumer waits for, `None` for any message.
        """
        arrival: Future[str | None] = Future()
        with self._changed:
            self._subscribers.append((type, arrival))
            if self._thread is None or not self._thread.is_alive():
                self._is_reading = False
                self._thread = Thread(target=self._run, name="arrivals", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return arrival

    def wait_for_reader(self, arrival: Future[str | None]) -> None:
        """Wait until no message that arrives later is missed: the reader knows the end of each stream."""
        with self._changed:
            # The reader may have notified this consumer already, and stopped.
            if not self._changed.wait_for(lambda: self._is_reading or arrival.done(), timeout=READ_BLOCK_TIMEOUT):
                self._is_late = True

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
                    self._notify(lambda _: math.inf)

    def _read(self, client: redis.Redis) -> None:
        ends: dict[Any, Any] = {stream.encode(): self._end_of(client, stream) for stream in self._streams}
        ends[self._resumes] = self._end_of(client, self._resumes.decode())
        with self._changed:
            self._is_reading = True
            self._changed.notify_all()
            if self._is_late:
                self._is_late = False
                self._notify(lambda _: math.inf)
        while True:
            with self._changed:
                if not self._has_subscribers():
                    self._is_reading = False  # later subscribers wait for the next read loop
                    return
            types: list[str | None] = []
            is_resumed = False
            read: Any = client.xread(ends, count=ARRIVALS_PER_READ, block=int(READ_BLOCK_TIMEOUT * 1000))
            for stream, entries in read:
                ends[stream] = entries[-1][0]
                if stream == self._resumes:
                    is_resumed = True
                else:
                    types += (_type_in(fields) for _, fields in entries)
            if is_resumed:
                self._notify(lambda _: math.inf)  # resuming a type may make many messages available
            else:
                self.wake(types)

    @staticmethod
    def _end_of(client: redis.Redis, stream: str) -> bytes | str:
        try:
            return client.xinfo_stream(stream)["last-generated-id"]  # type: ignore[no-any-return]
        except redis.ResponseError:
            return "0-0"  # no such stream yet

    def _has_subscribers(self) -> bool:
        self._subscribers = [(type, arrival) for type, arrival in self._subscribers if not arrival.done()]
        return bool(self._subscribers)

    def wake(self, types: Sequence[str | None]) -> None:
        """Notify consumers of new messages of these types. `None`: the type is not known; it may be any."""
        counts = Counter(types)
        self._notify(lambda type: len(types) if type is None else counts[type] + counts[None])

    def _notify(self, count_of: Callable[[str | None], float]) -> None:
        """Notify `count_of(type)` of the consumers that wait for each type."""
        with self._changed:
            rest: list[tuple[str | None, Future[str | None]]] = []
            notified = Counter[str | None]()
            for type, arrival in self._subscribers:
                if notified[type] >= count_of(type):
                    rest.append((type, arrival))
                elif arrival.set_running_or_notify_cancel():
                    arrival.set_result(type)
                    notified[type] += 1
            self._subscribers = rest
            self._changed.notify_all()

    def unsubscribe(self, arrival: Future[str | None]) -> None:
        """Stop waiting. An unused notification is passed to the next consumer that waits for the same type."""
        if not arrival.cancel():
            self._notify(lambda type: type == arrival.result())


def _type_in(fields: Mapping[bytes, bytes]) -> str | None:
    """Return the type of the message in an entry; `None` if it is not as `enqueue.lua` has added it."""
    found = _ENQUEUED.match(fields.get(b"data", b""))
    return found[1].decode("utf-8", "replace") if found else None
