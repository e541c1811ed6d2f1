"""Relay, the service whose streams the message queue continues: writes entries and metadata in its form."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import Any
from uuid import uuid4

import redis

Entry = tuple[str, str, dict[str, Any]]
"""The stream, the entry id and the message of an entry."""


class Relay:
    """One server of the old service. It signs its messages if it has a secret."""

    def __init__(self, client: redis.Redis, queue: str, *, secret: str | None = None) -> None:
        # Its replies are bytes, whereas redis-py's types allow for each protocol and decoding.
        self.client: Any = client
        self.queue, self.secret = queue, secret
        self.group, self.consumer = f"{queue}_group", "consumer-1"
        self.metadata = f"{queue}_metadata"

    def enqueue(self, type: str, payload: Any = None, priority: int = 0, **fields: Any) -> str:
        message = {"type": type, "payload": payload, "id": uuid4().hex, "created_at": time.time(), **fields}
        return self._add(self._stream(priority), {**message, "priority": priority})

    def take(self, type: str | None = None, *, ack_timeout: float | None = None) -> dict[str, Any]:
        """Take the oldest message, or the oldest of a type, which passes through the manual stream."""
        stream, sid, message = self._oldest_of_type(type) if type else self._oldest()
        known = json.loads(self.client.hget(self.metadata, message["id"]) or "{}")
        about = {
            "attempt_count": known.get("attempt_count", 0) + 1,
            "dequeued_at": time.time(),
            "created_at": message["created_at"],
            "last_error": None,
            "processing_duration": 0,
            "custom_ack_timeout": ack_timeout or message.get("custom_ack_timeout"),
            "custom_max_attempts": message.get("custom_max_attempts"),
            "consumer_id": self.consumer,
            "lock_token": uuid4().hex,
        }
        original = {name: message.get(name) for name in ("type", "payload", "priority", "created_at")}
        self.set_metadata(message["id"], {**about, "_original_message": original})
        return {**message, **about, "_stream_id": sid, "_stream_name": stream}

    def set_metadata(self, id: str, metadata: dict[str, Any]) -> None:
        self.client.hset(self.metadata, id, json.dumps(metadata))

    def nack(self, taken: dict[str, Any], reason: str = "NACK: Requeued") -> None:
        """Requeue a message into the stream from which it was read, also the manual one."""
        self._add(taken["_stream_name"], {**self._content(taken), "last_error": reason})
        self._remove(taken)

    def dead_letter(self, taken: dict[str, Any], reason: str) -> None:
        outcome = {"failed_at": time.time(), "last_error": reason, "attempt_count": taken["attempt_count"]}
        self._add(f"{self.queue}_dlq", {**self._content(taken), **outcome})
        self._remove(taken)
        self.client.hdel(self.metadata, taken["id"])

    def archive(self, taken: dict[str, Any]) -> None:
        self._add(f"{self.queue}_archived", {**self._content(taken), "archived_at": time.time()})
        self._remove(taken)

    def _content(self, taken: dict[str, Any]) -> dict[str, Any]:
        return {name: taken[name] for name in ("type", "payload", "id", "created_at", "priority")}

    def _stream(self, priority: int) -> str:
        return f"{self.queue}_p{priority}" if priority else self.queue

    def _add(self, stream: str, message: dict[str, Any]) -> str:
        text = json.dumps(message, separators=(",", ":"))
        if self.secret is not None:
            text += "|" + hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        self.client.xadd(stream, {"data": text})
        return str(message["id"])

    def _remove(self, taken: dict[str, Any]) -> None:
        self.client.xack(taken["_stream_name"], self.group, taken["_stream_id"])
        self.client.xdel(taken["_stream_name"], taken["_stream_id"])

    def _oldest(self) -> Entry:
        for stream in [f"{self.queue}_manual", *(self._stream(priority) for priority in range(9, -1, -1))]:
            if self.client.exists(stream) and (entry := self._read(stream)):
                return entry
        raise AssertionError("no message waits")

    def _oldest_of_type(self, type: str) -> Entry:
        for priority in range(9, -1, -1):
            for sid, fields in self.client.xrange(self._stream(priority)):
                if json.loads(fields[b"data"])["type"] == type:
                    self.client.xadd(f"{self.queue}_manual", fields)
                    self.client.xdel(self._stream(priority), sid)
                    entry = self._read(f"{self.queue}_manual")
                    assert entry is not None
                    return entry
        raise AssertionError("no message of this type waits")

    def _read(self, stream: str) -> Entry | None:
        groups = self.client.xinfo_groups(stream)
        if not groups:
            self.client.xgroup_create(stream, self.group, "0")
        answer = self.client.execute_command(
            "XREADGROUP", "GROUP", self.group, self.consumer, "COUNT", 1, "STREAMS", stream, ">"
        )
        if not answer:
            return None
        [entries] = answer.values() if isinstance(answer, dict) else [answer[0][1]]
        sid, fields = entries[0] if isinstance(entries[0][0], bytes) else entries[0][0]
        pairs = dict(zip(fields[::2], fields[1::2], strict=True)) if isinstance(fields, list) else fields
        return stream, sid.decode(), json.loads(pairs[b"data"])
