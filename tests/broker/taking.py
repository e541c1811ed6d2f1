"""A consumer in the test's own process, on the batched transport."""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kombu import Connection, Consumer, Queue
from redis import Redis

from queue_manager.broker.options import register_transport

OPTIONS = {"visibility_timeout": 30, "priority_steps": [0]}


@contextmanager
def connected(url: str, **options: Any) -> Iterator[Connection]:
    with Connection(url, transport=register_transport(url), transport_options={**OPTIONS, **options}) as connection:
        yield connection


def send(connection: Connection, queue: str, *bodies: Any, **options: Any) -> None:
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(body, routing_key=queue, serializer="json", **options)


class Taker:
    """Takes messages off queues; `taken` are those that were delivered."""

    def __init__(self, connection: Connection, *queues: str, prefetch: int = 0, no_ack: bool = False) -> None:
        self.taken: list[Any] = []
        self.connection = connection
        self.channel = connection.channel()
        self.channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(
            self.channel, [Queue(name) for name in queues], on_message=self.received, no_ack=no_ack
        )
        self.consumer.consume()

    def received(self, message: Any) -> None:
        self.taken.append(message)

    def drain(self, *, timeout: float = 0.3) -> list[Any]:
        """Take until nothing comes for `timeout` seconds; return the bodies of all that came so far."""
        self.take(timeout=timeout)
        return self.bodies

    def take(self, *, timeout: float = 0.3) -> None:
        while True:
            began = time.monotonic()
            with suppress(TimeoutError):
                while True:
                    self.connection.drain_events(timeout=timeout)
                    began = time.monotonic()
            self.channel._create_client().ping()  # a server that stands still has not said that there is nothing
            if time.monotonic() - began < 2 * timeout and not self._has_more():
                return

    def _has_more(self) -> bool:
        """Read again; return whether a message arrived. What Redis sent before its answer to the ping is here."""
        taken = len(self.taken)
        with suppress(TimeoutError):
            self.connection.drain_events(timeout=0.05)
        return len(self.taken) > taken

    @property
    def bodies(self) -> list[Any]:
        return [message.payload for message in self.taken]


def waiting(client: Redis, name: str) -> list[Any]:
    """Return the bodies that wait on a list, the next first."""
    return [body(message) for message in reversed(client.lrange(name, 0, -1))]


def body(raw: bytes | str) -> Any:
    """Return what a message as it is on the wire carries."""
    message = json.loads(raw)
    is_encoded = message["properties"].get("body_encoding") == "base64"
    return json.loads(b64decode(message["body"]) if is_encoded else message["body"])


def envelope(body: Any, **headers: Any) -> dict[str, Any]:
    """Return a message as it is on the wire, with a plain body."""
    return {
        "body": json.dumps(body),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {
            "delivery_info": {"exchange": "", "routing_key": "q"},
            "delivery_tag": "tag",
            "priority": 0,
            "body_encoding": None,
        },
    }


def held(client: Redis) -> tuple[int, int]:
    """Return how many messages are registered in the hash and in the index: the same."""
    return client.hlen("unacked"), client.zcard("unacked_index")
