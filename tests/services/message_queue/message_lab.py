"""A message queue for tests, with everything that uses it and with direct access to its keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self
from uuid import uuid4

import redis

from dev.binaries import VALKEY
from dev.servers import Valkey
from queue_manager.core.clock import seconds
from queue_manager.core.redis_client import CLIENT_OPTIONS
from services.message_queue import Message, MessageQueue, MessageState, QueueAdmin
from services.message_queue.arrivals import READ_BLOCK_TIMEOUT, ArrivalNotifier
from services.message_queue.messages import QueueOptions
from services.message_queue.other_programs import OtherPrograms
from services.message_queue.scripts import Scripts, streams
from services.message_queue.sweeper import Sweeper

ASIDE = ("healed", "healed_until", "forget_cursor", "adopted")
"""Keys that say how far a search has come: they may change when nothing else does."""


class WheelValkey(Valkey):
    program = replace(VALKEY, commands=())


class PlainRedis(Valkey):
    program = replace(
        VALKEY, name="Redis", variable="QM_PLAIN_REDIS_BIN", commands=("redis-server",), in_wheel=lambda: None
    )


LONG, PERIOD = seconds(1000), seconds(5)


@dataclass
class Lab:
    """A queue on the server of `url`, with a client that sees bytes. Also a context manager that closes the clients."""

    url: str
    name: str = "q"
    levels: int = 4
    max_attempts: int = 3
    ack_timeout: timedelta = LONG
    batch: int = 100
    within: timedelta = PERIOD
    is_token_required: bool = True
    is_shared: bool = True
    schedule_sweep: Callable[[timedelta], object] | None = None

    def __post_init__(self) -> None:
        # Its replies are bytes, whereas redis-py's types allow for each protocol and decoding.
        self.client: Any = redis.Redis.from_url(self.url, **CLIENT_OPTIONS)
        self.scripts = Scripts(redis.Redis.from_url(self.url, **CLIENT_OPTIONS), queue=self.name)
        self.waiting_name = f"arrivals-{uuid4().hex}"
        self.streams = streams(self.name, self.levels)
        self.arrivals = ArrivalNotifier(self._waiting_client, self.streams)
        options = QueueOptions(
            levels=self.levels,
            max_payload_bytes=1024 * 1024,
            ack_timeout=self.ack_timeout,
            max_attempts=self.max_attempts,
            sweep_period=self.within,
            is_token_required=self.is_token_required,
            is_shared=self.is_shared,
        )
        self.queue = MessageQueue(self.scripts, self.arrivals, options, schedule_sweep=self.schedule_sweep)
        self.contents = QueueAdmin(self.scripts, options)
        self.sweeper = Sweeper(self.scripts, options, batch=self.batch)
        self.others = OtherPrograms(self.scripts, options)

    def _waiting_client(self) -> redis.Redis:
        return redis.Redis.from_url(
            self.url, **{**CLIENT_OPTIONS, "socket_timeout": READ_BLOCK_TIMEOUT + 3, "client_name": self.waiting_name}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.scripts.client.close()

    def key(self, rest: str) -> str:
        return self.name + rest

    def empty(self) -> None:
        """Delete all keys, and what an earlier test has set."""
        self.client.config_set("maxmemory", 0)
        self.client.flushall()

    # What happens to messages

    def take(self, **wanted: Any) -> Message:
        """Dequeue a message that must be there."""
        message = self.queue.dequeue(**wanted)
        assert message is not None
        return message

    def clear(self, place: MessageState | None = None) -> int:
        """Delete all messages of a place, or of all places, and return their number."""
        return sum(self.contents.clear_in_batches(place))

    def lapse(self, *ids: str, ago: float = 1.0) -> None:
        """Let the deadlines of held messages have passed `ago` seconds ago, by the first id the longest."""
        now = self.now_ms()
        for number, id in enumerate(ids):
            passed_at = now - ago * 1000 - len(ids) + number
            assert self.client.zadd(self.key(":deadlines"), {id: passed_at}, xx=True, ch=True) == 1

    def heal(self) -> int:
        """Heal now, however long ago the last time was."""
        self.client.delete(self.key(":healed"))
        return self.others.heal(budget=seconds(30))

    # MessageBrowser from outside

    def now_ms(self) -> int:
        whole, micro = self.client.time()
        return int(whole) * 1000 + int(micro) // 1000

    def until_passed(self, deadline_ms: float) -> None:
        """Wait until the server's clock is past a deadline that is near."""
        while self.now_ms() <= deadline_ms:
            time.sleep(0.0005)

    def dump(self) -> dict[bytes, Any]:
        """Return the content of every key, but of those that only say how far a search has come."""
        aside = {self.key(f":{name}").encode() for name in ASIDE}
        return {key: self._content(key) for key in sorted(self.client.keys()) if key not in aside}

    def _content(self, key: bytes) -> Any:
        match self.client.type(key):
            case b"string":
                return self.client.get(key)
            case b"hash":
                return self.client.hgetall(key)
            case b"set":
                return self.client.smembers(key)
            case b"zset":
                return self.client.zrange(key, 0, -1, withscores=True)
            case b"stream":
                return (
                    self.client.xrange(key),
                    self.client.xinfo_stream(key)["last-generated-id"],
                    self.client.xinfo_groups(key),
                    self.pending(key.decode()),
                )
            case other:
                raise AssertionError(f"{key!r} is a {other!r}")

    def pending(self, stream: str) -> list[bytes]:
        """Return the ids of entries that are in the hands of consumers."""
        try:
            found = self.client.xpending_range(stream, self.key("_group"), "-", "+", 1_000_000)
        except redis.ResponseError:
            return []  # nobody has read it
        return [entry["message_id"] for entry in found]

    def last_delivered(self, stream: str) -> list[int]:
        """Return the parts of the id up to which the group has read a stream."""
        try:
            groups = self.client.xinfo_groups(stream)
        except redis.ResponseError:
            return []  # there is no such stream
        ids = [group["last-delivered-id"] for group in groups if group["name"] == self.key("_group").encode()]
        return [int(part) for id in ids for part in id.split(b"-")]

    def events(self) -> list[bytes]:
        return [fields[b"event"] for _, fields in self.client.xrange(self.key(":events"))]

    def ids(self, place: MessageState) -> list[str]:
        """Return the ids in a place, the newest first."""
        return [message.id for message in self.everything(place)]

    def everything(self, place: MessageState, **options: Any) -> list[Message]:
        """Return all messages of a place, by as many pages as it takes."""
        found: list[Message] = []
        cursor: str | None = options.pop("cursor", None)
        while True:
            page = self.contents.list(place, cursor=cursor, **{"limit": 1000, **options})
            found += page.messages
            cursor = page.cursor
            if cursor is None:
                return found

    def commands(self) -> Mapping[str, int]:
        """Return how often each command was called since `config_resetstat`, by clients or scripts."""
        return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in self.client.info("commandstats").items()}
