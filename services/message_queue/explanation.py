"""Why a message is in its state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from queue_manager.core.clock import from_unix_seconds, milliseconds, seconds
from queue_manager.core.wording import distance, error_summary, many, ordinal, sentence, when
from queue_manager.explanation import DispatchState, Explanation, TimelineEvent, Tone, newest_first
from queue_manager.system import System
from services.message_queue.admin import DEFAULT_MOVE_REASON, QueueAdmin
from services.message_queue.browser import MessageState
from services.message_queue.fields import is_id
from services.message_queue.messages import HistoryEvent, Message, QueueOptions

STATE_LABELS: dict[MessageState, tuple[str, Tone]] = {
    "main": ("waiting", "neutral"),
    "processing": ("processing", "good"),
    "dead": ("failed", "bad"),
    "acknowledged": ("acknowledged", "good"),
    "archived": ("archived", "neutral"),
}
FAILURES = ("requeued", "dead-lettered")
"""Events whose reason is an error; the reason of others was written by a person."""
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f]")
_NOT_ACKNOWLEDGED = "not acknowledged in time"
REASON_NOTES = {"Max attempts exceeded (Stream)": _NOT_ACKNOWLEDGED, "Processing timeout": _NOT_ACKNOWLEDGED}
"""Explanations of the reasons that the queue itself records, in words that other programs know."""
EVENT_LABELS = {
    "delivered": "Delivered",
    "touched": "Deadline extended",
    "requeued": "Requeued",
    "dead-lettered": "Failed",
    "acknowledged": "Acknowledged",
    "replayed": "Replayed",
    "archived": "Archived",
}


def reason_text(reason: str) -> str:
    """Return the recorded reason of a failure, with what it means."""
    return f"{reason}: {REASON_NOTES[reason]}" if reason in REASON_NOTES else reason


def explain(
    system: System, admin: QueueAdmin, options: QueueOptions, id: str, dispatch: DispatchState
) -> list[Explanation]:
    """Return the message that an id names."""
    found = next(admin.locate([id]), None) if dispatch.is_on and is_id(id) else None
    return [] if found is None else [_MessageExplanation(system, admin, options, *found, dispatch).explanation()]


@dataclass
class _MessageExplanation:
    """One message while it is explained."""

    _system: System
    _admin: QueueAdmin
    _options: QueueOptions
    _state: MessageState
    _message: Message
    _dispatch: DispatchState

    def __post_init__(self) -> None:
        self._now = from_unix_seconds(self._admin.counts().now)
        self._events = list(self._message.events())

    def explanation(self) -> Explanation:
        id, (label, tone) = self._message.id, STATE_LABELS[self._state]
        can_be_replayed = self._state == "dead" and self._message.is_decodable
        return Explanation(
            system=self._system.name,
            kind=self._system.item_name,
            id=id,
            title=self._message.type,
            label=label,
            tone=tone,
            answer=sentence(*self._clauses()),
            page=self._system.page_of_item(id),
            document=f"/api/queue/message/{quote(id, safe='')}",
            retry="/api/queue/replay" if can_be_replayed else None,
            retry_body={"messageIds": [id]} if can_be_replayed else {},
            timeline=newest_first([self._created(), *_entries(self._events, self._last_error)]),
        )

    def _clauses(self) -> Iterator[str]:
        if not self._message.is_decodable:
            yield "it cannot be decoded"
        match self._state:
            case "main":
                yield f"Waiting since {self._when(self._last_at('requeued', 'replayed') or self._created_at)}"
                yield self._pause() or self._others()
                yield from self._last_failure()
            case "processing":
                yield from self._processing()
            case "dead":
                yield f"failed at {self._field('failed_at')}, after {many(self._message.attempt, 'attempt')}"
                known = f"Reason: {error_summary(reason_text(self._last_error))}"
                reason = known if self._last_error else "No reason was recorded"
                if self._message.is_decodable:
                    yield f"no consumer gets it until it is replayed. {reason}"
                else:
                    yield f"it cannot be replayed: delete or archive it. {reason}"
            case "acknowledged":
                yield f"acknowledged at {self._field('acknowledged_at')}"
                yield f"at attempt {self._message.attempt}"
            case "archived":
                yield f"archived at {self._field('archived_at')}, so no consumer gets it"

    def _pause(self) -> str | None:
        pause = self._admin.pauses().get(self._message.type)
        return None if pause is None else f"messages of its type are paused {pause}".rstrip()

    def _others(self) -> str:
        others = sum(self._admin.counts().waiting[self._message.priority :]) - 1
        if others <= 0:
            return "the next consumer gets it"
        return f"{many(others, 'other message')} of this or a higher priority {'waits' if others == 1 else 'wait'}, too"

    def _processing(self) -> Iterator[str]:
        fields = self._message.fields
        by = f" by consumer {fields['consumer_id']}" if fields.get("consumer_id") else ""
        limit = fields.get("custom_max_attempts") or self._options.max_attempts
        attempt = f"attempt {self._message.attempt} of {limit}"
        deadline = self._message.deadline_at
        if deadline is None:
            yield f"being processed{by}"
        elif from_unix_seconds(deadline) > self._now:
            yield f"being processed{by} until {self._when(deadline)}"
        else:
            yield f"being processed{by}; its deadline passed {distance(from_unix_seconds(deadline), self._now)}"
            yield self._dispatch.scan()
        yield attempt

    def _last_failure(self) -> Iterator[str]:
        last = next((one for one in reversed(self._events) if one.reason and one.event in FAILURES), None)
        if last is not None and self._message.attempt:  # a replay resets the attempts
            reason = error_summary(reason_text(last.reason or ""))
            yield f"its {ordinal(self._message.attempt)} attempt failed. Reason: {reason}"

    @property
    def _last_error(self) -> str:
        """The reason of the last failure; empty if the program that dead-lettered it recorded none."""
        return str(self._message.fields.get("last_error") or "")

    # Times

    @property
    def _created_at(self) -> float:
        return float(self._message.fields["created_at"])

    def _created(self) -> TimelineEvent:
        at = from_unix_seconds(self._created_at)
        return TimelineEvent(at=at, event="Added", detail=f"priority {self._message.priority}")

    def _last_at(self, *kinds: str) -> float | None:
        return next((one.at for one in reversed(self._events) if one.event in kinds), None)

    def _field(self, name: str) -> str:
        at = self._message.fields.get(name)
        return "an unknown time" if at is None else self._when(at)

    def _when(self, at: float) -> str:
        return when(from_unix_seconds(at), self._now)


def _entries(events: Sequence[HistoryEvent], last_error: str) -> Iterator[TimelineEvent]:
    """Yield the entries, oldest first. Events have only the first 200 bytes of a reason, in one line."""
    last = next((one for one in reversed(events) if one.event in FAILURES), None)
    delivered_at: float | None = None
    for event in events:
        ends_delivery = event.event in ("requeued", "dead-lettered", "acknowledged")
        took = None if delivered_at is None or not ends_delivery else milliseconds(seconds(event.at - delivered_at))
        is_whole = event is last and event.reason and _CONTROL_CHARACTER.sub(" ", last_error).startswith(event.reason)
        reason = last_error if is_whole else event.reason
        details = (
            "" if event.consumer_id is None else f"to {event.consumer_id}",
            "" if event.attempt is None else f"attempt {event.attempt}",
            "" if event.touches is None else many(event.touches, "time"),
            "" if event.event in FAILURES or event.reason == DEFAULT_MOVE_REASON else event.reason,
        )
        yield TimelineEvent(
            at=from_unix_seconds(event.at),
            event=EVENT_LABELS[event.event],
            detail=", ".join(filter(None, details)),
            duration_ms=took,
            error=reason_text(reason) if reason and event.event in FAILURES else None,
        )
        delivered_at = event.at if event.event == "delivered" else None if ends_delivery else delivered_at
