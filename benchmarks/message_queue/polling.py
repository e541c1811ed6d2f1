"""The usual way to find overdue messages: look through the oldest pending entries of each stream, one by one.

A lock says who looks. Whether an entry is overdue is told by its message's metadata, which are read for each; what is
overdue is moved in a transaction of its own. One page of each stream is looked at in a tick.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import redis

LOCK_MS = 30_000
UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Polling:
    """Requeues by polling, on the keys that the queue uses too."""

    def __init__(
        self,
        client: redis.Redis,
        queue: str,
        streams: Sequence[str],
        *,
        page: int,
        ack_timeout: float,
        max_attempts: int,
    ) -> None:
        self._client, self._queue, self._streams = client, queue, streams
        self._page, self._ack_timeout, self._max_attempts = page, ack_timeout, max_attempts
        self._group, self._records, self._lock = f"{queue}_group", f"{queue}_metadata", f"{queue}:overdue_requeue_lock"

    def create_groups(self) -> None:
        """Create what a consumer creates before its first read: the streams, and the group of each."""
        for stream in self._streams:
            with suppress(redis.ResponseError):  # it exists
                self._client.xgroup_create(stream, self._group, id="0", mkstream=True)

    def tick(self) -> list[str]:
        """Look at one page of each stream; return the ids of what was requeued."""
        token = uuid4().hex
        if not self._client.set(self._lock, token, nx=True, px=LOCK_MS):
            return []
        try:
            moved = [id for stream in self._streams for id in self._requeue_page(stream)]
            if moved:
                self._client.publish(f"{self._queue}_events", self._event(len(moved)))
            return moved
        finally:
            self._client.eval(UNLOCK, 1, self._lock, token)

    def drain(self) -> list[str]:
        """Tick without a pause until a tick finds nothing; return the ids of what was requeued."""
        moved: list[str] = []
        while of_tick := self.tick():
            moved += of_tick
        return moved

    def _requeue_page(self, stream: str) -> Iterator[str]:
        page: Any = self._client.xpending_range(stream, self._group, "-", "+", self._page)
        for entry in page:
            sid = entry["message_id"]
            found: Any = self._client.xrange(stream, sid, sid)
            if not found:
                continue
            message = json.loads(found[0][1][b"data"])
            about = json.loads(self._client.hmget(self._records, message["id"])[0] or b"{}")
            if self._is_overdue(about, idle=entry["time_since_delivered"] / 1000):
                self._move(stream, sid, message, about)
                yield message["id"]

    def _is_overdue(self, about: dict[str, Any], *, idle: float) -> bool:
        taken_at = about.get("dequeued_at")
        elapsed = time.time() - taken_at if taken_at else idle
        return bool(elapsed >= about.get("custom_ack_timeout", self._ack_timeout))

    def _move(self, stream: str, sid: bytes, message: dict[str, Any], about: dict[str, Any]) -> None:
        is_dead = about.get("attempt_count", 0) >= about.get("custom_max_attempts", self._max_attempts)
        message["attempt_count"] = about.get("attempt_count", 0)
        message["last_error"] = "Max attempts exceeded (Stream)" if is_dead else "Processing timeout"
        with self._client.pipeline(transaction=True) as moving:
            moving.srem(f"{self._queue}:pending_ids", message["id"])
            moving.xadd(f"{self._queue}_dlq" if is_dead else stream, {"data": json.dumps(message)})
            moving.xack(stream, self._group, sid)
            moving.xdel(stream, sid)
            if is_dead:
                moving.hdel(self._records, message["id"])
            moving.execute()

    @staticmethod
    def _event(count: int) -> str:
        payload = {"count": count, "dlq_count": 0, "triggered_by": "scheduler"}
        return json.dumps({"type": "requeue", "timestamp": int(time.time() * 1000), "payload": payload})
