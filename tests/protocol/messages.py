"""The protocol of one message of the message queue, from enqueue to acknowledged or dead.

Each operation is one atomic script (`services/message_queue/lua/`), so each step below is one, and is what the script
does to the keys of the message: its entry in a stream, its record, and its deadline. Consumers may be late, die, or not
hear an answer at every moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.protocol.checker import Specification, Steps, invariant, step

Stream = Literal["main", "typed", "dead", "acknowledged", "archived"]
"""`typed` has what was delivered to a consumer that asked for a type."""


class Entry(NamedTuple):
    """An entry of a stream that has the message."""

    stream: Stream
    is_pending: bool = False
    """It is in the pending list of the consumer group: delivered, and not acknowledged."""
    is_parked: bool = False
    """The group has passed over it while its type was paused: it is in `<queue>:parked:<type>`, and still waiting."""


class Record(NamedTuple):
    """The message's record, in `<queue>_metadata`."""

    attempts: int = 0
    is_locked: bool = False
    """It has the lock token of a delivery, and its deadline."""


class Delivery(NamedTuple):
    """What a consumer knows: its lock token."""

    is_current: bool = True
    """The token is the one in the record."""


class Stored(NamedTuple):
    """The state of everything: the keys of the message, the consumers, and what has happened."""

    entries: tuple[Entry, ...] = ()
    """The record names the first one."""
    record: Record | None = None
    deadline: Literal["none", "coming", "passed"] = "none"
    """In the sorted set `<queue>:deadlines`."""
    deliveries: tuple[Delivery, ...] = ()
    """Of the consumers that work on the message, or believe so."""
    enqueues: int = 0
    """How often the producer may still enqueue it, since it got no answer."""
    operations: int = 0
    """How often an operator may still interfere."""
    pauses: int = 0
    """How often an operator may still pause its type."""
    is_paused: bool = False
    """Its type is paused, in `<queue>:pauses`."""

    is_stored: bool = False
    """It was enqueued, and neither deleted nor forgotten."""
    attempts: int = 0
    """Deliveries since it was enqueued or replayed."""
    granted: int = 0
    """How often an operator took it from a consumer since then: each time it may be delivered once more."""
    acks: int = 0
    """Acknowledgements since then."""
    is_acked_by_another: bool = False
    is_touched_by_another: bool = False
    is_requeued_early: bool = False
    is_delivered_after_ack: bool = False
    is_delivered_while_paused: bool = False

    @property
    def stream(self) -> Stream | None:
        return self.entries[0].stream if self.entries else None

    @property
    def is_processing(self) -> bool:
        return self.record is not None and self.record.is_locked


@dataclass(frozen=True)
class MessageQueueProtocol(Specification[Stored]):
    """The life of one message. The fields are the bounds of what is explored."""

    consumers: int = 2
    max_attempts: int = 2
    enqueues: int = 2
    operations: int = 2
    pauses: int = 1

    def initial(self) -> Stored:
        return Stored(enqueues=self.enqueues, operations=self.operations, pauses=self.pauses)

    # Producers

    @step
    def enqueue(self, message: Stored) -> Steps[Stored]:
        # enqueue.lua: a message whose id exists is not added again.
        if message.enqueues:
            left = message._replace(enqueues=message.enqueues - 1)
            if self.is_known(message):
                yield "the producer enqueues it again; its id exists", left
            else:
                new = left._replace(entries=(*left.entries, Entry("main")), record=Record())
                yield "the producer enqueues it", new._replace(is_stored=True, attempts=0, granted=0, acks=0)

    # Consumers

    @step
    def receive(self, message: Stored) -> Steps[Stored]:
        # dequeue.lua, delivery.lua: the group delivers the entry, or it is claimed for the group if it was parked; the
        # record gets a token, the deadline is set.
        for at, entry in enumerate(message.entries):
            is_waiting = entry.stream == "main" and not entry.is_pending
            if is_waiting and self.may_deliver(message) and len(message.deliveries) < self.consumers:
                yield "a consumer receives it", self.delivered(message, at, "main")
                yield "a consumer receives it by its type", self.delivered(message, at, "typed")

    @step
    def pass_over(self, message: Stored) -> Steps[Stored]:
        # dequeue.lua: the group reads the entry in its turn, and no consumer gets it.
        for at, entry in enumerate(message.entries):
            if entry == Entry("main") and message.is_paused:
                yield "a consumer passes over it, since its type is paused", self.parked(message, at)

    @step
    def touch(self, message: Stored) -> Steps[Stored]:
        # touch.lua
        for delivery in set(message.deliveries):
            if self.may_extend(message, delivery):
                is_wrong = message.is_touched_by_another or not delivery.is_current
                extended = message._replace(deadline="coming", is_touched_by_another=is_wrong)
                yield f"{shown(delivery)} extends the deadline", extended

    @step
    def acknowledge(self, message: Stored) -> Steps[Stored]:
        # ack.lua
        for delivery in set(message.deliveries):
            if self.may_end(message, delivery):
                is_wrong = message.is_acked_by_another or not delivery.is_current
                left = without(message, delivery)._replace(is_acked_by_another=is_wrong, acks=message.acks + 1)
                yield f"{shown(delivery)} acknowledges it", self.put(left, "acknowledged")
                heard_nothing = self.put(left._replace(deliveries=message.deliveries), "acknowledged")
                yield f"{shown(delivery)} acknowledges it, and hears no answer", heard_nothing

    @step
    def reject(self, message: Stored) -> Steps[Stored]:
        # nack.lua
        for delivery in set(message.deliveries):
            if self.may_end(message, delivery):
                yield f"{shown(delivery)} rejects it", self.returned(without(message, delivery))

    @step
    def consumer_dies(self, message: Stored) -> Steps[Stored]:
        for delivery in set(message.deliveries):
            yield f"{shown(delivery)} dies, or gives up", without(message, delivery)

    # Deadlines

    @step
    def deadline_passes(self, message: Stored) -> Steps[Stored]:
        if message.deadline == "coming":
            yield "its deadline passes", message._replace(deadline="passed")

    @step
    def sweep(self, message: Stored) -> Steps[Stored]:
        # requeue.lua. A holder that is late may still acknowledge it before.
        if self.is_overdue(message):
            is_early = message.is_requeued_early or message.deadline == "coming"
            yield "a sweep finds it overdue", self.returned(message._replace(is_requeued_early=is_early))

    # Operators

    @step
    def move(self, message: Stored) -> Steps[Stored]:
        # move.lua: to any state; from `dead` to `main` it is a replay.
        if message.operations and message.record is not None:
            left = message._replace(operations=message.operations - 1)
            for to in ("dead", "acknowledged", "archived"):
                if message.stream != to:
                    yield f"an operator moves it to {to}", self.put(left, to)
            if message.is_processing:
                granted = left._replace(granted=left.granted + 1)
                yield "an operator takes it from its consumer", self.put(granted, "main")
            elif message.stream != "main":
                yield "an operator replays it", self.put(self.replayed(left), "main")

    @step
    def delete(self, message: Stored) -> Steps[Stored]:
        # delete.lua, also while a consumer has it.
        if message.operations and message.record is not None:
            gone = self.forgotten(message)
            yield "an operator deletes it", gone._replace(operations=message.operations - 1)

    @step
    def pause(self, message: Stored) -> Steps[Stored]:
        # pause.lua, resume.lua: only the pause is written, or deleted.
        if message.is_paused:
            yield "an operator resumes its type", message._replace(is_paused=False)
        elif message.pauses:
            yield "an operator pauses its type", message._replace(is_paused=True, pauses=message.pauses - 1)

    @step
    def trim(self, message: Stored) -> Steps[Stored]:
        # moves.lua, trim_history: only the last 100 acknowledged messages are kept. A producer that repeats its call
        # later than that enqueues a new message.
        if message.stream == "acknowledged" and not message.enqueues:
            yield "100 others are acknowledged, it is forgotten", self.forgotten(message)

    # What must hold

    @invariant
    def acknowledged_once_by_its_holder(self, message: Stored) -> bool:
        return message.acks <= 1 and not message.is_acked_by_another

    @invariant
    def never_in_two_places(self, message: Stored) -> bool:
        return len(message.entries) <= 1

    @invariant
    def nothing_is_lost(self, message: Stored) -> bool:
        return not message.is_stored or (len(message.entries) > 0 and message.record is not None)

    @invariant
    def never_delivered_after_ack(self, message: Stored) -> bool:
        return not message.is_delivered_after_ack

    @invariant
    def never_delivered_while_paused(self, message: Stored) -> bool:
        return not message.is_delivered_while_paused

    @invariant
    def attempts_are_bounded(self, message: Stored) -> bool:
        return message.attempts <= self.max_attempts + message.granted

    @invariant
    def one_holder_at_most(self, message: Stored) -> bool:
        current = [delivery for delivery in message.deliveries if delivery.is_current]
        return len(current) <= (1 if message.is_processing else 0)

    @invariant
    def requeued_only_after_its_deadline(self, message: Stored) -> bool:
        return not message.is_requeued_early

    @invariant
    def extended_only_by_its_holder(self, message: Stored) -> bool:
        return not message.is_touched_by_another

    @invariant
    def delivered_with_a_deadline(self, message: Stored) -> bool:
        is_pending = any(entry.is_pending for entry in message.entries)
        return is_pending == message.is_processing == (message.deadline != "none")

    def is_settled(self, message: Stored) -> bool:
        """It is acknowledged or dead, or an operator has taken it away."""
        is_gone = not message.is_stored and not message.enqueues
        return is_gone or message.stream in ("acknowledged", "dead", "archived")

    # The rules that protect the invariants

    def is_known(self, message: Stored) -> bool:
        return message.record is not None

    def may_deliver(self, message: Stored) -> bool:
        """dequeue.lua, dequeue_typed.lua: its type is not paused."""
        return not message.is_paused

    def may_extend(self, message: Stored, delivery: Delivery) -> bool:
        """moves.lua, locked_record: the caller has the token of the current delivery."""
        return message.is_processing and delivery.is_current

    def may_end(self, message: Stored, delivery: Delivery) -> bool:
        """The same, to acknowledge or reject."""
        return message.is_processing and delivery.is_current

    def is_overdue(self, message: Stored) -> bool:
        return message.deadline == "passed"

    def counted(self, record: Record) -> Record:
        """Return the record after one more delivery."""
        return record._replace(attempts=record.attempts + 1)

    def unlocked(self, delivery: Delivery) -> Delivery:
        """moves.lua, clear_delivery: the token in the record is deleted."""
        return delivery._replace(is_current=False)

    # Parts of scripts

    def delivered(self, message: Stored, at: int, stream: Stream) -> Stored:
        assert message.record is not None
        others = tuple(delivery._replace(is_current=False) for delivery in message.deliveries)
        return message._replace(
            entries=(*message.entries[:at], Entry(stream, is_pending=True), *message.entries[at + 1 :]),
            record=self.counted(message.record)._replace(is_locked=True),
            deadline="coming",
            deliveries=tuple(sorted((*others, Delivery()))),
            attempts=message.attempts + 1,
            is_delivered_after_ack=message.is_delivered_after_ack or message.acks > 0,
            is_delivered_while_paused=message.is_delivered_while_paused or message.is_paused,
        )

    def parked(self, message: Stored, at: int) -> Stored:
        """types.lua, park: the entry stays where it is, and is pending for nobody."""
        return message._replace(
            entries=(*message.entries[:at], Entry("main", is_parked=True), *message.entries[at + 1 :])
        )

    def put(self, message: Stored, stream: Stream) -> Stored:
        """moves.lua, release; records.lua, append: the entry moves to another stream, and the delivery ends."""
        assert message.record is not None
        return message._replace(
            entries=(Entry(stream), *message.entries[1:]),
            record=message.record._replace(is_locked=False),
            deadline="none",
            deliveries=tuple(sorted(self.unlocked(delivery) for delivery in message.deliveries)),
        )

    def returned(self, message: Stored) -> Stored:
        """Return the message requeued or, if its attempts are used, dead."""
        assert message.record is not None
        return self.put(message, "dead" if message.record.attempts >= self.max_attempts else "main")

    def replayed(self, message: Stored) -> Stored:
        """move.lua, reset_attempts."""
        assert message.record is not None
        return message._replace(record=message.record._replace(attempts=0), attempts=0, granted=0, acks=0)

    def forgotten(self, message: Stored) -> Stored:
        deliveries = tuple(sorted(self.unlocked(delivery) for delivery in message.deliveries))
        return message._replace(
            entries=message.entries[1:], record=None, deadline="none", deliveries=deliveries, is_stored=False
        )


def without(message: Stored, delivery: Delivery) -> Stored:
    at = message.deliveries.index(delivery)
    return message._replace(deliveries=message.deliveries[:at] + message.deliveries[at + 1 :])


def shown(delivery: Delivery) -> str:
    return "the consumer that holds it" if delivery.is_current else "a consumer that lost its lock"
