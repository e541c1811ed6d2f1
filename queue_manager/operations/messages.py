"""Lists, status, settings, changes and deletion of messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from queue_manager.core.log import get_logger
from queue_manager.core.settings import settings
from queue_manager.core.wording import many
from queue_manager.operations import cursors
from queue_manager.operations.message_fields import whole
from queue_manager.operations.message_schemas import (
    AcknowledgedLength,
    Cleared,
    MessageQueueStatus,
    QueueConfig,
    QueueLength,
    QueueTotals,
)
from services.audit import Actor, AuditedAction, recorded
from services.message_queue import (
    Filter,
    Message,
    MessageListing,
    MessageState,
    UnknownMessage,
    queue_admin,
    system,
)
from services.message_queue.admin import MessageOutcome
from services.message_queue.browser import MATCH_ALL, MAX_PAGE_BYTES, MESSAGE_STATES
from services.message_queue.fields import checked_text
from services.message_queue.scripts import batches

AUDITED_QUEUE: dict[str, Any] = {"system": system.name, "is_in_redis": True}
"""What the audit has of all actions on messages."""
SUCCESSES: frozenset[MessageOutcome] = frozenset({"MOVED", "DELETED"})
Change = Callable[[Sequence[str], AuditedAction], Mapping[str, MessageOutcome]]
"""Changes some messages as a part of an audited action, and returns the outcome of each by id."""
MORE_REMAIN = "; more remain, repeat to continue"

log = get_logger("QM/queue")


@dataclass(frozen=True, kw_only=True)
class MessagesInState:
    """The list of messages that a request selects."""

    state: MessageState
    where: Filter = MATCH_ALL
    sort_by: str | None = None
    """One of `SORT_FIELDS_BY_STATE`."""
    is_descending: bool = True

    @property
    def id(self) -> str:
        """The name of the list in its cursors."""
        return f"messages {self.state} {self.sort_by or ''} {'desc' if self.is_descending else 'asc'}"

    def page(self, cursor: str | None, limit: int, *, skip: int = 0, max_bytes: int = MAX_PAGE_BYTES) -> MessageListing:
        """Return the page after a cursor, as `MessageBrowser.list` does.

        Raises:
            InvalidField: names the field of the list, or the cursor.
            QueueUnavailable: the queue's server does not answer.
        """
        after = cursors.decode(cursor, of=self.id)
        found = queue_admin().list(
            self.state,
            limit=limit,
            skip=skip,
            cursor=None if after is None else str(after[0]),
            where=self.where,
            sort_by=self.sort_by,
            ascending=not self.is_descending,
            max_bytes=max_bytes,
        )
        return replace(found, cursor=cursors.encode(found.cursor and [found.cursor], of=self.id))


def queue_status() -> MessageQueueStatus:
    """Return the number of messages in each state. Raises `QueueUnavailable`."""
    counts, name = queue_admin().counts(), settings().queue_name
    total = counts.total_acknowledged
    return MessageQueueStatus(
        pauses=queue_admin().pauses(),
        main=counts.main,
        processing=counts.processing,
        dead=counts.dead,
        acknowledged=counts.acknowledged,
        archived=counts.archived,
        priorities={str(priority): waiting for priority, waiting in enumerate(counts.waiting)},
        total_acknowledged=total,
        overdue=counts.overdue,
        first_deadline_at=counts.first_deadline_at,
        server_time=counts.now,
        mainQueue=QueueLength(name=name, length=counts.main),
        processingQueue=QueueLength(name="processing_pending", length=counts.processing),
        deadLetterQueue=QueueLength(name=f"{name}_dlq", length=counts.dead),
        acknowledgedQueue=AcknowledgedLength(name=f"{name}_acknowledged", length=counts.acknowledged, total=total),
        archivedQueue=QueueLength(name=f"{name}_archived", length=counts.archived),
        metadata=QueueTotals(totalProcessed=total, totalFailed=counts.total_dead_lettered, totalAcknowledged=total),
    )


def queue_config() -> QueueConfig:
    """Return the settings of the queue."""
    chosen = settings()
    return QueueConfig(
        ack_timeout_seconds=whole(chosen.ack_timeout_seconds),
        max_attempts=chosen.max_attempts,
        max_priority_levels=chosen.max_priority_levels,
        max_payload_bytes=chosen.queue_max_payload_bytes,
        require_lock_token=chosen.queue_require_lock_token,
        overdue_check_interval_ms=chosen.overdue_check_interval_ms,
        requeue_batch_size=chosen.requeue_batch_size,
    )


def find_message(id: str) -> tuple[MessageState, Message]:
    """Return the state and content of a message. Raises `InvalidMessage`, `UnknownMessage` and `QueueUnavailable`."""
    found = queue_admin().find_with_state(id)
    if found is None:
        raise UnknownMessage(f"There is no message {id}")
    return found


def message_json(state: MessageState, message: Message) -> str:
    """Return a message as JSON, with its state and what happened to it since its first delivery."""
    events = [{name: value for name, value in asdict(event).items() if value is not None} for event in message.events()]
    about = json.dumps({"state": state, "events": events, "server_time": queue_admin().counts().now})
    return f"{message.to_json()[:-1]},{about[1:]}"


def edit_message(id: str, changes: Mapping[str, Any], actor: Actor, *, source: MessageState | None) -> Message:
    """Change a message, and return it as it is now.

    Raises:
        InvalidMessage: the id or a change is invalid.
        UnknownMessage: there is no such message, or not in `source`.
        MessageInProgress: a consumer holds it.
    """
    with recorded(actor, "edit", **AUDITED_QUEUE, ids=[checked_text(id, "id")]) as action:
        before, changed = queue_admin().update(id, changes, source=source)
        action.changed(_editable(before), _editable(changed))
    log.info("Message changed by an operator", message_id=id)
    return changed


def _editable(message: Message) -> dict[str, Any]:
    """Return the values of a message that people can change."""
    names = ("type", "priority", "custom_ack_timeout", "custom_max_attempts")
    return {**{name: message.fields.get(name) for name in names}, "payload": message.payload_json}


def change_messages(
    action: AuditedAction, ids: Sequence[str], change: Change
) -> Iterator[Mapping[str, MessageOutcome]]:
    """Change messages in batches; yield the outcomes of each batch by id, and record what it has changed."""
    changed: list[str] = []
    for some in batches(ids):
        outcomes = change(some, action)
        changed += [id for id, outcome in outcomes.items() if outcome in SUCCESSES]
        action.succeeded(changed)  # before the caller prints them, which may fail
        yield outcomes
    action.succeeded(changed)  # also if there is no batch


def clear_messages(queue: MessageState | None, actor: Actor, *, is_over: Callable[[], bool]) -> Cleared:
    """Delete in batches, each of which is an event, until `is_over`; the rest is left for the next call."""
    count = 0
    with recorded(actor, "clear", **AUDITED_QUEUE, filter={"state": queue or "all"}) as action:
        admin = queue_admin()
        counts = admin.counts()
        expected = sum(map(counts.of, MESSAGE_STATES if queue is None else [queue]))
        for deleted in admin.clear_in_batches(queue, keep=action.keeper("message", expected=expected)):
            action.count = count = count + deleted
            if is_over():
                action.is_complete = False
                break
    log.info("Messages cleared by an operator", queue=queue or "all", messages=count, complete=action.is_complete)
    message = f"{many(count, 'message')} deleted{'' if action.is_complete else MORE_REMAIN}"
    return Cleared(message=message, queueType=queue, cleared=count, is_complete=action.is_complete, undo=action.undo)
