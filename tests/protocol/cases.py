"""The explored specifications within their bounds, and the broken variants with the invariant each violates."""

from __future__ import annotations

from typing import Any

from tests.protocol import broken
from tests.protocol.checker import TRAP, Specification
from tests.protocol.dispatch import Dispatch
from tests.protocol.jobs import JobProtocol
from tests.protocol.messages import MessageQueueProtocol
from tests.protocol.pauses import MessageOrder

SPECIFICATIONS: dict[str, tuple[Specification[Any], int]] = {
    "faults": (Dispatch(due_times=1, workers=1, faults=2, max_attempts=2), 29_338),
    "duplicates": (Dispatch(due_times=1, workers=2, faults=1, max_attempts=1), 16_746),
    "retries": (Dispatch(due_times=1, workers=2, faults=0, max_attempts=2), 13_401),
    "snoozes": (Dispatch(due_times=2, workers=1, faults=1, max_attempts=1), 27_960),
    "races": (Dispatch(due_times=2, workers=2, faults=0, max_attempts=1), 38_040),
    "without leases": (broken.NoLease(due_times=2, workers=1, faults=0, max_attempts=1, queue_length=2), 9_772),
    "message": (MessageQueueProtocol(), 2_639),
    "message, larger": (MessageQueueProtocol(consumers=3, max_attempts=3, enqueues=3, operations=3), 14_289),
    "order of messages": (MessageOrder(), 2_756),
    "jobs, failures": (JobProtocol(failures=1, faults=0, operations=0), 12_834),
    "jobs, faults": (JobProtocol(failures=0, faults=1, operations=0), 29_882),
    "jobs, operators": (JobProtocol(failures=0, faults=0, operations=1), 16_230),
    "jobs, failures and operators": (JobProtocol(runs=1, failures=1, faults=0, operations=1), 3_578),
}
"""By name, with the number of states."""

LARGER: dict[str, tuple[Specification[Any], int]] = {
    "duplicates, larger": (Dispatch(due_times=1, workers=2, faults=2, max_attempts=1), 70_857),
    "races, larger": (Dispatch(due_times=2, workers=2, faults=1, max_attempts=1), 490_512),
    "jobs, larger": (JobProtocol(failures=0, faults=1, operations=1), 308_476),
}
"""Explored by `make stress`: about a minute and 900 MB of memory."""

BROKEN: list[tuple[Specification[Any], str]] = [
    (broken.NoCompareAndSet(due_times=1, workers=2, faults=0), "one_effect_per_due_time"),
    (broken.NoCompareAndSet(due_times=2, workers=1, faults=0), "newer_snooze_is_kept"),
    (broken.DueByTheWorkersClock(due_times=1, workers=1), "never_early"),
    (broken.LeaseWithoutDueTime(due_times=2, workers=2, faults=0), "old_message_releases_no_newer_lease"),
    (broken.FailureNotedBlindly(due_times=2, workers=1, faults=0), "failure_is_noted_for_its_own_due_time"),
    (broken.RecordWrittenLater(due_times=1, workers=1), "event_is_sent_or_owed"),
    (broken.RecordDeletedFirst(due_times=1, workers=1), "event_is_sent_or_owed"),
    (broken.SuspectInBatch(due_times=1, workers=1), "suspect_is_executed_alone"),
    (broken.RetryWithoutLimit(due_times=1, workers=1), "attempts_are_bounded"),
    (broken.LeaseWithoutEnd(due_times=1, workers=1, max_attempts=1), TRAP),
    (broken.LostMessageKeepsLease(due_times=1, workers=1, max_attempts=1), TRAP),
    (broken.AckWithoutFencing(), "acknowledged_once_by_its_holder"),
    (broken.TouchWithoutFencing(), "extended_only_by_its_holder"),
    (broken.RequeueKeepsToken(), "one_holder_at_most"),
    (broken.RequeueIgnoresTouch(), "requeued_only_after_its_deadline"),
    (broken.RequeueOfAnAcknowledged(), "never_delivered_after_ack"),
    (broken.NoSweep(), TRAP),
    (broken.EnqueueWithoutId(), "never_in_two_places"),
    (broken.RequeueAddsFirst(), "never_in_two_places"),
    (broken.RequeueRemovesFirst(), "nothing_is_lost"),
    (broken.UncountedDelivery(), "attempts_are_bounded"),
    (broken.DeliveryWithoutDeadline(), "delivered_with_a_deadline"),
    (broken.PauseOfNewOnes(), "never_delivered_while_paused"),
    (broken.PassedOverIsPending(), "delivered_with_a_deadline"),
    (broken.ReadsBeforeResumed(), "order_is_kept"),
    (broken.ResumedByType(), "order_is_kept"),
    (broken.ResumeReadsAgain(), "a_pause_delivers_none_twice"),
    (broken.PauseOfTheRest(), "none_is_delivered_while_paused"),
    (broken.PassedOverIsForgotten(), "order_is_kept"),
    (broken.OutcomeWithoutFencing(operations=0), "success_is_final"),
    (broken.TakeoverOfAll(faults=0), "state_and_fields_agree"),
    (broken.StartWithoutUniqueIndex(), "one_is_executing"),
    (broken.ReservedAsRead(failures=0), "outcome_is_refused_only_after_a_loss"),
    (broken.ReservationOfSuspects(failures=0), "suspects_run_alone"),
    (broken.CanceledWithReservation(faults=0), "canceled_never_waits_again"),
    (broken.FailureAfterCancel(), "canceled_never_waits_again"),
    (broken.FinalFailureAfterCancel(faults=0), "canceled_never_waits_again"),
    (broken.ClaimedFirst(failures=0, faults=0), "outcome_is_refused_only_after_a_loss"),
    (broken.ClaimWithoutEnd(jobs=1, runs=1), TRAP),
]
