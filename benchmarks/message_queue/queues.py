"""Queues on the benchmark's server: filled, held, put back as they were, and looked through from outside."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import redis

from benchmarks.harness import expect
from benchmarks.message_queue.polling import Polling
from queue_manager.core.clock import minutes, seconds
from queue_manager.core.redis_client import CLIENT_OPTIONS
from queue_manager.core.settings import settings
from services.message_queue import MessageQueue, NewMessage, server_url
from services.message_queue.arrivals import ArrivalNotifier
from services.message_queue.messages import QueueOptions
from services.message_queue.scripts import Scripts, streams
from services.message_queue.sweeper import Sweeper

LEVELS = 10
BATCH = 100
PERIOD = seconds(5)
EXPIRED_TIMEOUT = 0.001  # seconds: an ack timeout that has passed by the next command


def connect(**options: Any) -> redis.Redis:
    return redis.Redis.from_url(server_url(), **{**CLIENT_OPTIONS, "socket_timeout": 60, **options})


def queue_options() -> QueueOptions:
    return QueueOptions(
        levels=LEVELS,
        max_payload_bytes=settings().queue_max_payload_bytes,
        ack_timeout=seconds(30),
        max_attempts=3,
        sweep_period=PERIOD,
    )


@dataclass(frozen=True)
class Queue:
    """One queue, and a client of its own."""

    name: str
    client: redis.Redis

    @cached_property
    def messages(self) -> MessageQueue:
        return MessageQueue(
            self._scripts,
            ArrivalNotifier(lambda: self.client, self.streams),
            queue_options(),
        )

    @cached_property
    def sweeper(self) -> Sweeper:
        return Sweeper(self._scripts, queue_options(), batch=BATCH)

    @cached_property
    def polling(self) -> Polling:
        return Polling(self.client, self.name, self.streams, page=BATCH, ack_timeout=30, max_attempts=3)

    @property
    def streams(self) -> list[str]:
        return streams(self.name, LEVELS)

    @cached_property
    def _scripts(self) -> Scripts:
        return Scripts(self.client, queue=self.name)

    def sweep(self) -> list[str]:
        """Take back everything that is overdue; return the ids."""
        return self.sweeper.sweep(budget=minutes(5)).requeued

    def fill(self, messages: Iterable[NewMessage]) -> None:
        rest = iter(messages)
        while batch := list(islice(rest, BATCH)):
            self.messages.enqueue_batch(batch)

    def take_all(self) -> list[tuple[str, str]]:
        """Take everything that waits; return ids and tokens, in the order of delivery."""
        return [(message.id, message.lock_token or "") for message in iter(self.messages.dequeue, None)]

    def let_expire(self) -> int:
        """Take everything that waits, with ack timeouts of `EXPIRED_TIMEOUT`; return the number when all is overdue."""
        taken = len(self.take_all())
        time.sleep(EXPIRED_TIMEOUT * 5)
        return taken

    def expect_waiting(self, ids: Iterable[str]) -> None:
        """Raise `WrongResult` unless these messages wait, each in one place, and nothing is pending."""
        entries = Counter(id for _, id in self.entries())
        expect("messages in more than one place", [id for id, places in entries.items() if places > 1], [])
        expect("messages that wait", set(entries), set(ids))
        expect("messages that are pending", self.pending(), 0)

    def entries(self) -> Iterator[tuple[int, str]]:
        """Yield when each entry was added, in ms by the server's clock, and the id of its message."""
        for stream in self.streams:
            entries: Any = self.client.xrange(stream)
            for sid, fields in entries:
                yield int(sid.split(b"-")[0]), json.loads(fields[b"data"])["id"]

    def pending(self) -> int:
        groups: Any = (self.client.xinfo_groups(stream) for stream in self.streams if self.client.exists(stream))
        return sum(int(group["pending"]) for of_stream in groups for group in of_stream)


class Snapshot:
    """All keys of the server, to be put back as they were: every round begins with the same data."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._keys: dict[Any, Any] = {key: client.dump(key) for key in client.scan_iter(count=1000)}

    def restore(self) -> None:
        self._client.flushall()
        for key, dumped in self._keys.items():
            self._client.restore(key, 0, dumped)


def messages(
    count: int, *, ack_timeout: float | None = None, levels: int = LEVELS, prefix: str = "message"
) -> Iterator[NewMessage]:
    """Yield messages of an ordinary size, in turn of all priorities."""
    for number in range(count):
        yield NewMessage(
            type="send_mail",
            payload={"to": f"user{number}@example.org", "template": "welcome", "number": number},
            priority=number % levels,
            ack_timeout=ack_timeout,
            id=f"{prefix}-{number}",
        )


def ids(count: int, *, prefix: str = "message") -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def server_clock(client: redis.Redis) -> float:
    """Return the processor time in seconds that the server has spent."""
    spent = client.info("cpu")
    return float(spent["used_cpu_user"]) + float(spent["used_cpu_sys"])


def server_name() -> str:
    with connect() as client:
        about = client.info("server")
    if "valkey_version" in about:
        return f"Valkey {about['valkey_version']}, append-only file on"
    return f"Redis {about['redis_version']}, append-only file on"
