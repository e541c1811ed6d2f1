"""The activity log: what happened in the queue, with anomalies, read from the events that are kept for clients.

Guarantee: nothing is stored for it. It covers the newest 10,000 entries of about 10,000 events; an event about several
messages has an entry for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from queue_manager.core.wording import many
from services.message_queue.browser import MessageState
from services.message_queue.messages import QueueOptions
from services.message_queue.scripts import Scripts, translate_errors

QueueEventType = Literal[
    "enqueue",
    "dequeue",
    "touch",
    "acknowledge",
    "nack",
    "requeue",
    "move_to_dlq",
    "move",
    "update",
    "delete",
    "clear",
]
AnomalyType = Literal[
    "queue_cleared",
    "dlq_movement",
    "near_dlq",
    "zombie_message",
    "long_processing",
    "burst_dequeue",
    "bulk_delete",
    "bulk_move",
    "flash_message",
]
AnomalySeverity = Literal["critical", "warning", "info"]

MAX_ACTIVITY_ENTRIES = 10_000
EVENTS_PER_PAGE = 500
# Thresholds of anomalies
FLASH_MS, ZOMBIE_MS = 2_000, 3_600_000
NEAR_DLQ_ATTEMPTS = 1
BURST_COUNT, BURST_SECONDS = 10, 5
BULK_MESSAGES = 10


class EventPayload(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of an event, see `docs/reference/events.md`."""

    count: int = 1
    ids: list[str] = []
    queue: str | None = None
    source: MessageState | Literal[""] | None = msgspec.field(default=None, name="from")
    target: MessageState | None = msgspec.field(default=None, name="to")
    triggered_by: str | None = None
    attempt: int | None = None
    age_ms: int | None = None
    consumer_id: str | None = None
    max_attempts: int | None = None


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as the scripts store it."""

    type: QueueEventType
    timestamp: int
    payload: EventPayload

    @property
    def subjects(self) -> Sequence[str | None]:
        """The ids of the messages; `None` stands for a queue."""
        return [None] if self.type == "clear" else self.payload.ids


@dataclass(frozen=True, kw_only=True)
class Anomaly:
    """Something unusual about an entry."""

    type: AnomalyType
    severity: AnomalySeverity
    description: str


@dataclass(frozen=True, kw_only=True)
class ActivityEntry:
    """What happened to a message, or to a queue if `message_id` is `None`, at `at` (Unix seconds, server clock)."""

    log_id: str
    type: QueueEventType
    at: float
    message_id: str | None
    event: EventPayload
    processing_seconds: float | None = None
    """How long the delivery took that this entry ends, if its event is kept."""
    anomaly: Anomaly | None = None
    """The most severe one."""


def read_activity(scripts: Scripts, options: QueueOptions) -> list[ActivityEntry]:
    """Return the entries, oldest first. Raises QueueUnavailable."""
    with translate_errors():
        events = list(_newest_events(scripts))
    context = _Context(options)
    return [
        context.entry(event, id, log_id=f"{sid}-{index}")
        for sid, event in reversed(events)
        for index, id in enumerate(event.subjects)
    ]


def _newest_events(scripts: Scripts) -> Iterator[tuple[str, StoredEvent]]:
    """Yield the entry id of each event and the event, newest first. Other entries of the stream are omitted."""
    before, count = "+", 0
    while True:
        found: Any = scripts.client.xrevrange(f"{scripts.queue}:events", max=before, count=EVENTS_PER_PAGE)
        for sid, fields in found:
            try:
                event = msgspec.json.decode(fields.get(b"event", b""), type=StoredEvent)
            except msgspec.MsgspecError:
                continue
            count += len(event.subjects)
            if count > MAX_ACTIVITY_ENTRIES:
                return
            yield sid.decode(), event
        if len(found) < EVENTS_PER_PAGE:
            return
        before = f"({found[-1][0].decode()}"


class _Context:
    """What earlier entries tell about later ones."""

    def __init__(self, options: QueueOptions) -> None:
        self._options = options
        self._delivered_at: dict[str | None, float] = {}
        self._deliveries: dict[str, deque[float]] = {}
        """By consumer, the times of the last deliveries."""

    def entry(self, event: StoredEvent, id: str | None, *, log_id: str) -> ActivityEntry:
        took = self._processing_seconds(event, id)
        return ActivityEntry(
            log_id=log_id,
            type=event.type,
            at=event.timestamp / 1000,
            message_id=id,
            event=event.payload,
            processing_seconds=took,
            anomaly=next(self._anomalies(event, took), None),
        )

    def _processing_seconds(self, event: StoredEvent, id: str | None) -> float | None:
        """Return how long the delivery took that an event ends; remember the deliveries that begin."""
        at = event.timestamp / 1000
        if event.type == "dequeue":
            self._delivered_at[id] = at
            if event.payload.consumer_id is not None:
                times = self._deliveries.setdefault(event.payload.consumer_id, deque(maxlen=BURST_COUNT))
                times.append(at)
        elif event.type not in ("touch", "enqueue") and (delivered_at := self._delivered_at.pop(id, None)):
            return at - delivered_at
        return None

    def _anomalies(self, event: StoredEvent, took: float | None) -> Iterator[Anomaly]:
        """Yield the anomalies of an event about a message, the most severe first."""
        type, count = event.type, event.payload.count
        if type == "clear" and count:
            yield Anomaly(type="queue_cleared", severity="critical", description=f"{many(count, 'message')} deleted")
        if type == "move_to_dlq" or (type == "move" and event.payload.target == "dead"):
            yield Anomaly(type="dlq_movement", severity="critical", description="The message became a dead letter")
        if took is not None and took > self._options.ack_timeout.total_seconds():
            yield Anomaly(type="long_processing", severity="warning", description=f"It was processed for {took:.0f} s")
        if type == "dequeue":
            yield from self._anomalies_of_delivery(event.payload)
        if type == "delete" and count > BULK_MESSAGES:
            yield Anomaly(type="bulk_delete", severity="warning", description=f"{count} messages deleted together")
        if type == "move" and count > BULK_MESSAGES:
            yield Anomaly(type="bulk_move", severity="info", description=f"{count} messages moved together")

    def _anomalies_of_delivery(self, delivery: EventPayload) -> Iterator[Anomaly]:
        if delivery.attempt is not None:
            left = (delivery.max_attempts or self._options.max_attempts) - delivery.attempt
            if left <= NEAR_DLQ_ATTEMPTS:
                description = f"{many(max(left, 0), 'attempt')} left after this delivery"
                yield Anomaly(type="near_dlq", severity="warning", description=description)
        age = delivery.age_ms
        if age is not None and age > ZOMBIE_MS:
            description = f"It was delivered {age / ZOMBIE_MS:.0f} h after it was added"
            yield Anomaly(type="zombie_message", severity="warning", description=description)
        times = self._deliveries.get(delivery.consumer_id or "")
        if times is not None and len(times) == BURST_COUNT and times[-1] - times[0] <= BURST_SECONDS:
            description = f"{delivery.consumer_id} received {BURST_COUNT} messages within {BURST_SECONDS} s"
            yield Anomaly(type="burst_dequeue", severity="warning", description=description)
        if age is not None and age < FLASH_MS:
            yield Anomaly(type="flash_message", severity="info", description=f"It was delivered after {age} ms")
