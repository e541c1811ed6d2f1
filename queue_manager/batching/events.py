"""Task events for Flower and other listeners, thousands per second.

A buffered event is encoded as JSON when it happens. The events of 50 ms are published together, after received tasks
have been sent to the pool. Celery would keep a dictionary for each, publish two dozen at a time and wait for each
publication. The messages have the same content.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from celery.app.events import Events as CeleryEvents
from celery.events.dispatcher import EventDispatcher
from celery.events.event import Event, group_from
from celery.utils.time import utcoffset
from kombu.utils.json import dumps

from queue_manager.broker.envelope import write
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import settings

EVENT_BATCH_SIZE = 1024  # events in one message: a third of a megabyte with our tasks
FLUSH_DELAY = 0.05  # seconds
PLAIN_EVENTS = ("task-received", "task-started", "task-succeeded")  # their fields are texts, numbers and `None`
_group_of = lru_cache(group_from)


def _write_any(fields: dict[str, Any]) -> bytes:
    return str(dumps(fields)).encode()


class Events(CeleryEvents):
    """Selected by the application's argument `events`. With QM_BATCHING=false, events are sent as by Celery."""

    @property
    def dispatcher_cls(self) -> str:
        return f"{__name__}:{Dispatcher.__name__ if settings().qm_batching else UnconfirmedDispatcher.__name__}"


class UnconfirmedDispatcher(EventDispatcher):
    """Sends events without waiting for the broker's confirmation.

    RabbitMQ confirms nothing while its memory is full, and the event loop that sends events also receives messages.
    """

    def __init__(self, connection: Any = None, *args: Any, **kwargs: Any) -> None:
        if connection is not None and connection.connected and hasattr(connection.connection, "confirm_publish"):
            connection.connection.confirm_publish = False
        super().__init__(connection, *args, **kwargs)


class Dispatcher(UnconfirmedDispatcher):
    """Sends events. Its buffers hold the JSON of each.

    Raises:
        ConfigurationError: the setting `event_serializer` is not `json`.
    """

    _is_flush_ordered = False
    _beginning: bytes  # of each event; renewed with each buffer, because the offset to UTC changes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"buffer_limit": EVENT_BATCH_SIZE, **kwargs})
        if self.serializer != "json":
            raise ConfigurationError(f"event_serializer: must be json, not {self.serializer!r}")

    def send(
        self,
        type: str,
        blind: bool = False,
        utcoffset: Any = utcoffset,
        retry: bool = False,
        retry_policy: Any = None,
        Event: Any = Event,
        **fields: Any,
    ) -> None:
        if not self._is_buffered(type):
            super().send(type, blind, utcoffset, retry, retry_policy, Event, **fields)
        elif self.enabled:
            self._keep(type, [fields])

    def send_all(self, type: str, fields: Sequence[dict[str, Any]]) -> None:
        """Send an event of one type with each of `fields`, to which `type` is added."""
        if not self._is_buffered(type):
            for one in fields:
                self.send(type, **one)
        elif self.enabled:
            self._keep(type, fields)

    def _is_buffered(self, type: str) -> bool:
        group = _group_of(type)
        return group in self.buffer_group and (not self.groups or group in self.groups)

    def _keep(self, type: str, all_fields: Sequence[dict[str, Any]]) -> None:
        buffer = self._group_buffer[_group_of(type)]
        if not buffer:
            self._beginning = write({"hostname": self.hostname, "utcoffset": utcoffset(), "pid": self.pid})[:-1]
        beginning = b'%b,"timestamp":%.6f' % (self._beginning, time.time())
        encode = write if type in PLAIN_EVENTS else _write_any
        for fields in all_fields:
            fields["type"] = type
            buffer.append(b'%b,"clock":%d,%b' % (beginning, self.clock.forward(), encode(fields)[1:]))
            if len(buffer) >= self.buffer_limit:
                self.flush()
        if buffer and self.on_send_buffered and not self._is_flush_ordered:
            self._is_flush_ordered = True
            # The consumer's loop: kombu's `get_event_loop` returns `None` after the first lost connection.
            self.on_send_buffered.__self__.hub.call_later(FLUSH_DELAY, self.flush)

    def extend_buffer(self, other: Any) -> None:
        """Take over the events that the dispatcher of a lost connection has not sent. The caller flushes them."""
        super().extend_buffer(other)
        for group, events in other._group_buffer.items():
            self._group_buffer[group].extend(events)

    def flush(self, *args: Any, **kwargs: Any) -> None:
        self._is_flush_ordered = False
        super().flush(*args, **kwargs)

    def _publish(self, event: Any, producer: Any, routing_key: str, **options: Any) -> None:
        """Publish an event, or a buffer of them. With `buffer_while_offline`, a buffer is kept if that fails."""
        if not isinstance(event, list):
            super()._publish(event, producer, routing_key, **options)
            return
        if producer is None:
            return
        try:
            producer.publish(
                b"[%b]" % b",".join(event),
                content_type="application/json",
                content_encoding="utf-8",
                routing_key=routing_key,
                exchange=self.exchange.name,
                declare=[self.exchange],
                headers=self.headers,
                delivery_mode=self.delivery_mode,
            )
        except Exception:
            if not self.buffer_while_offline:
                raise
            self._outbound_buffer.append((event, routing_key))
