"""Broken variants of the specifications: each lacks one rule, and violates the invariant that the rule protects."""

from __future__ import annotations

from tests.protocol.checker import Steps
from tests.protocol.dispatch import Dispatch
from tests.protocol.item_state import Attempt, Item, Sent
from tests.protocol.jobs import Claim, Ended, Job, JobProtocol, Outcome, Queue, Read, Run
from tests.protocol.lease import ItemLease
from tests.protocol.messages import Delivery, Entry, MessageQueueProtocol, Record, Stored, Stream
from tests.protocol.pauses import MessageOrder, Order

# Dispatch


class NoCompareAndSet(Dispatch):
    """A write succeeds although the document was changed since it was read."""

    def written(self, item: Item, *, due: int) -> Item:
        return item._replace(due=due)


class DueByTheWorkersClock(Dispatch):
    """The write does not compare the due time with the database server's clock; a worker's clock is ahead."""

    def is_due(self, item: Item) -> bool:
        return True


class LeaseWithoutDueTime(Dispatch):
    """A lease is named by the item's id alone."""

    def lease_of(self, due: int) -> int:
        return 1


class FailureNotedBlindly(Dispatch):
    """The failure is written into the document without the condition on its due time."""

    def may_note(self, item: Item, attempt: Attempt) -> bool:
        return True


class RecordWrittenLater(Dispatch):
    """The record of the pending call is not in the transaction of the write."""

    def effect(self, item: Item, attempt: Attempt) -> Item:
        return super().effect(item, attempt)._replace(owed=item.owed)


class RecordDeletedFirst(Dispatch):
    """The record is deleted before `after` is called."""

    def may_clear(self, item: Item, due: int) -> bool:
        return True


class SuspectInBatch(Dispatch):
    """An item whose process died is executed with others again."""

    def must_run_alone(self, lease: ItemLease) -> bool:
        return False


class RetryWithoutLimit(Dispatch):
    """A failed attempt is always followed by another one."""

    def may_retry(self, message: Sent) -> bool:
        return True


class LeaseWithoutEnd(Dispatch):
    """A lease lasts until its holder releases it."""

    def lease_ends(self, item: Item) -> Steps[Item]:
        return iter(())

    def canonical(self, item: Item) -> Item:
        return item


class LostMessageKeepsLease(Dispatch):
    """No scan compares the leases that wait with the messages."""

    def free_lost(self, item: Item) -> Steps[Item]:
        return iter(())


class NoLease(Dispatch):
    """Scans dispatch everything that is due. Not broken: a lease protects no data."""

    def take_lease(self, item: Item) -> Steps[Item]:
        if item.scan is not None and item.scan.phase == "found":
            taken = self.with_lease(item, item.scan.due, self.lease(item, item.scan.due).taken())
            yield "the scan sends what it found", taken._replace(scan=item.scan._replace(phase="taken"))


# Message queue


class AckWithoutFencing(MessageQueueProtocol):
    """Knowing the id is enough to acknowledge, as with QUEUE_REQUIRE_LOCK_TOKEN=false."""

    def may_end(self, message: Stored, delivery: Delivery) -> bool:
        return message.is_processing


class TouchWithoutFencing(MessageQueueProtocol):
    """Knowing the id is enough to extend the deadline."""

    def may_extend(self, message: Stored, delivery: Delivery) -> bool:
        return message.is_processing


class RequeueKeepsToken(MessageQueueProtocol):
    """A requeue leaves the token in the record."""

    def unlocked(self, delivery: Delivery) -> Delivery:
        return delivery


class RequeueIgnoresTouch(MessageQueueProtocol):
    """The sweep goes by the time since the delivery, as XAUTOCLAIM does, and not by the deadline."""

    def is_overdue(self, message: Stored) -> bool:
        return message.is_processing


class RequeueOfAnAcknowledged(MessageQueueProtocol):
    """The sweep does not ask if the message is still pending since it found it overdue."""

    def is_overdue(self, message: Stored) -> bool:
        return message.deadline == "passed" or message.stream == "acknowledged"


class NoSweep(MessageQueueProtocol):
    """Nobody requeues overdue messages."""

    def is_overdue(self, message: Stored) -> bool:
        return False


class EnqueueWithoutId(MessageQueueProtocol):
    """A repeated enqueue is not recognized."""

    def is_known(self, message: Stored) -> bool:
        return False


class RequeueAddsFirst(MessageQueueProtocol):
    """A requeue is two scripts: the first one adds the new entry."""

    def returned(self, message: Stored) -> Stored:
        return super().returned(message)._replace(entries=(*super().returned(message).entries, *message.entries))


class RequeueRemovesFirst(MessageQueueProtocol):
    """A requeue is two scripts: the first one removes the old entry."""

    def returned(self, message: Stored) -> Stored:
        return super().returned(message)._replace(entries=())


class UncountedDelivery(MessageQueueProtocol):
    """A delivery does not count as an attempt."""

    def counted(self, record: Record) -> Record:
        return record


class DeliveryWithoutDeadline(MessageQueueProtocol):
    """The deadline is set by another script after the delivery."""

    def delivered(self, message: Stored, at: int, stream: Stream) -> Stored:
        return super().delivered(message, at, stream)._replace(deadline="none")


class PauseOfNewOnes(MessageQueueProtocol):
    """A pause keeps new messages aside, and does not ask for the type of one that is delivered."""

    def may_deliver(self, message: Stored) -> bool:
        return True


class PassedOverIsPending(MessageQueueProtocol):
    """What the group has read and no consumer gets is left in the pending list."""

    def parked(self, message: Stored, at: int) -> Stored:
        return message._replace(
            entries=(*message.entries[:at], Entry("main", is_pending=True), *message.entries[at + 1 :])
        )


# Order of messages


class ReadsBeforeResumed(MessageOrder):
    """What was set aside is delivered when nothing else waits."""

    def is_resumed_first(self) -> bool:
        return False


class ResumeReadsAgain(MessageOrder):
    """A resume moves the group back to the first message that was set aside, and so to the others behind it."""

    def resumed(self, order: Order, kind: str) -> Order:
        first = min((at for at in order.parked if order.kinds[at] == kind), default=order.read)
        parked = tuple(at for at in order.parked if at < first)
        return super().resumed(order, kind)._replace(read=first, parked=parked)


class PassedOverIsForgotten(MessageOrder):
    """What the group has read and no consumer gets is not noted anywhere."""

    def passed_over(self, order: Order) -> Order:
        return order._replace(read=order.read + 1)


class ResumedByType(MessageOrder):
    """Of several resumed types, one is delivered after the other."""

    def next_parked(self, order: Order) -> int | None:
        return min(
            (at for at in order.parked if order.kinds[at] not in order.paused),
            key=lambda at: (order.kinds[at], at),
            default=None,
        )


class PauseOfTheRest(MessageOrder):
    """What was set aside is delivered even if its type is paused again."""

    def next_parked(self, order: Order) -> int | None:
        return next(iter(order.parked), None)


# Jobs


class OutcomeWithoutFencing(JobProtocol):
    """An outcome is written without the condition that the run holds the job."""

    def outcome_to_write(self, queue: Queue, number: int, ended: Ended) -> Outcome | None:
        return ended.outcome if queue.jobs[ended.read.job].state != "deleted" else None


class StartWithoutUniqueIndex(JobProtocol):
    """Two jobs of a name may be executing."""

    def may_start(self, queue: Queue, read: Read) -> bool:
        return self.is_unchanged(queue, read)


class ReservedAsRead(JobProtocol):
    """A job is reserved although it was executed since the run has read it."""

    def is_unchanged(self, queue: Queue, read: Read) -> bool:
        return queue.jobs[read.job].waiting == "now"


class ReservationOfSuspects(JobProtocol):
    """A job shares a batch although it was reserved when another run was lost."""

    def may_reserve(self, queue: Queue, number: int, read: Read) -> bool:
        job = queue.jobs[read.job]
        return super().may_reserve(queue.with_job(read.job, job._replace(is_alone=False)), number, read)


class CanceledWithReservation(JobProtocol):
    """An operator changes a job whose reservation has ended, and the run may still write its outcome."""

    def changed(self, job: Job) -> Job:
        return job


class FailureAfterCancel(JobProtocol):
    """A function that fails is retried although an operator canceled its job meanwhile."""

    def outcome_to_write(self, queue: Queue, number: int, ended: Ended) -> Outcome | None:
        outcome = super().outcome_to_write(queue, number, ended)
        return outcome and ended.outcome


class FinalFailureAfterCancel(JobProtocol):
    """A final failure is written although an operator canceled the job meanwhile; a new leader makes it due."""

    def outcome_to_write(self, queue: Queue, number: int, ended: Ended) -> Outcome | None:
        outcome = super().outcome_to_write(queue, number, ended)
        return outcome and ("final failure" if ended.outcome == "final failure" else outcome)


class ClaimedFirst(JobProtocol):
    """The outcome of the claimed job is written before those of the reserved ones."""

    def next_outcome(self, run: Run) -> Ended:
        return max(run.ended)


class TakeoverOfAll(JobProtocol):
    """A new leader makes jobs due whatever their state is."""

    def may_make_due(self, job: Job) -> bool:
        return job.state != "deleted"


class ClaimWithoutEnd(JobProtocol):
    """The lease of a job never ends, and nobody notices that its process is dead."""

    def is_lost(self, queue: Queue, claim: Claim) -> bool:
        return False
