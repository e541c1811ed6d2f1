"""The protocol of a dispatched item, from its due time to the event about it.

One document falls due, a scan takes its lease and sends a message, a worker executes it, one conditional write decides,
and a record in the same transaction brings the event. Everything may fail at every step. Each step below is one method,
whose comment names the code that implements it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.protocol.checker import Steps, step
from tests.protocol.dispatch_rules import DispatchRules
from tests.protocol.item_state import EXECUTING, Attempt, Item, Phase, Scan, Sent
from tests.protocol.lease import MAX_LOSSES, ItemLease


@dataclass(frozen=True)
class Dispatch(DispatchRules):
    """The steps; `DispatchRules` has the bounds, the invariants and the rules."""

    # Users and time

    @step
    def snooze(self, item: Item) -> Steps[Item]:
        # The product writes `snooze_time.time`, at any moment, also while the item is in flight.
        for due in item.choices:
            left = tuple(one for one in item.choices if one != due)
            yield f"a user sets the due time {due}", self.written(item, due=due)._replace(choices=left)

    @step
    def change(self, item: Item) -> Steps[Item]:
        if any(attempt.phase == "read" for attempt in item.attempts):
            yield "another program changes the document", self.written(item, due=item.due)

    @step
    def time_passes(self, item: Item) -> Steps[Item]:
        if item.now < self.due_times:
            yield f"it is {item.now + 1} o'clock", item._replace(now=item.now + 1)

    # The scan: tasks/scan.py, services/due_work.py

    @step
    def find(self, item: Item) -> Steps[Item]:
        # DocumentWork.find_due, also what falls due before the next scan.
        if item.scan is None and item.due and item.due <= item.now + 1:
            yield f"a scan finds the document due at {item.due}", item._replace(scan=Scan("found", item.due))

    @step
    def take_lease(self, item: Item) -> Steps[Item]:
        # Leases.take. What it found may be outdated: the lease decides what is sent, not whether it is right.
        for due in item.scanned("found"):
            lease = self.lease(item, due)
            if lease.is_free:
                taken = self.with_lease(item, due, lease.taken())
                yield "the scan takes the lease", taken._replace(scan=Scan("taken", due))
            if not lease.is_free or lease.is_ended:
                yield "the scan finds the lease taken", item._replace(scan=None)

    @step
    def send(self, item: Item) -> Steps[Item]:
        # batching/publish.py. After an unknown outcome the lease is kept, and ends.
        for due in item.scanned("taken"):
            if len(item.queue) < self.queue_length:
                sent = item.queued(Sent(due))
                yield "the scan sends a message", sent._replace(scan=Scan("sent", due))
            refused = self.with_lease(item, due, self.lease(item, due).released())
            yield "the broker refuses the message, the scan releases the lease", refused._replace(scan=None)

    @step
    def mark_sent(self, item: Item) -> Steps[Item]:
        # DueWork.mark_dispatched: from now on the lease has no end while the message waits.
        for due in item.scanned("sent"):
            lease, left = self.lease(item, due), item._replace(scan=None)
            yield "the scan marks the item as sent", self.with_lease(left, due, lease.dispatched())
            yield "the scan marks the item as sent ahead of its time", self.with_lease(left, due, lease.sent_again())

    @step
    def free_lost(self, item: Item) -> Steps[Item]:
        # Leases.free_lost: more leases wait than messages, so some messages were lost.
        waiting = [due for due in self.keys() if self.lease(item, due).place == "waiting"]
        if len(waiting) > len(item.queue):
            for due in waiting:
                freed = self.with_lease(item, due, self.lease(item, due).freed())
                yield f"a scan frees the lease of {due}, whose message seems lost", freed

    # Leases in time

    @step
    def lease_ends(self, item: Item) -> Steps[Item]:
        for due in self.keys():
            lease = self.lease(item, due)
            if lease.place in ("sending", "running") and not lease.is_ended:
                yield f"the lease of {due} ends", self.with_lease(item, due, lease._replace(is_ended=True))

    @step
    def cool_down_ends(self, item: Item) -> Steps[Item]:
        for due in self.keys():
            lease = self.lease(item, due)
            if lease.is_cooling:
                yield f"the cool-down of {due} ends", self.with_lease(item, due, lease._replace(is_cooling=False))
            if lease.is_done:
                forgotten = self.with_lease(item, due, lease._replace(is_done=False))
                yield f"the lease of {due}, which is done, is forgotten", forgotten

    # A worker: broker/channel.py, queue_manager/worker/heartbeat.py, batching/, tasks/item.py

    @step
    def receive(self, item: Item) -> Steps[Item]:
        # TAKE_MESSAGES: off the list and registered as unacknowledged, in one script.
        if len(item.attempts) < self.workers:
            for message in set(item.queue):
                received = item.received(message).with_attempt(Attempt("received", message))
                yield f"a worker receives {shown(message)}", received

    @step
    def renew(self, item: Item) -> Steps[Item]:
        # queue_manager/worker/heartbeat.py → Leases.renew, while the worker lives.
        for due in {attempt.message.due for attempt in item.attempts if attempt.phase != "lost"}:
            renewed = self.with_lease(item, due, self.lease(item, due).renewed())
            yield f"a worker renews the lease of {due}", renewed

    @step
    def start_in_batch(self, item: Item) -> Steps[Item]:
        # Leases.batch. An item that started and never ended is left to its own task.
        for attempt in item.in_phase("received"):
            lease = self.lease(item, attempt.message.due)
            if attempt.is_alone:
                continue
            if self.must_run_alone(lease):
                yield "the batch leaves the item to its own task", item.moved(attempt, is_alone=True)
            else:
                started = self.with_lease(item, attempt.message.due, lease.started())
                is_wrong = item.is_suspect_batched or attempt.message.due in item.lost
                started = started._replace(is_suspect_batched=is_wrong)
                yield "a worker starts the item in a batch", started.moved(attempt, "started")

    @step
    def start_alone(self, item: Item) -> Steps[Item]:
        # Leases.alone. Lost too often in a row, the item must cool down first.
        for attempt in item.in_phase("received"):
            due = attempt.message.due
            lease = self.lease(item, due).with_loss()
            if lease.has_started and lease.losses >= MAX_LOSSES:
                cooling = self.with_lease(item, due, lease.cooled_down())._replace(lost=item.lost - {due})
                yield "the item must cool down: its process was lost again", cooling.moved(attempt, "given up")
            else:
                started = self.with_lease(item, due, lease.started())
                yield "a worker starts the item alone", started.moved(attempt, "started", is_alone=True)

    @step
    def read(self, item: Item) -> Steps[Item]:
        # DueCollection.apply: what is due at the time that is meant, by the database server's clock.
        for attempt in item.in_phase("started"):
            if attempt.message.due != item.due:
                yield "the worker skips the item: it is not due at this time any more", item.moved(attempt, "done")
            elif self.is_due(item):
                yield "the worker reads the document", item.moved(attempt, "read")
            # Else it is early, and waits (NotYetDue).

    @step
    def write(self, item: Item) -> Steps[Item]:
        # DueCollection.apply: update and record are one transaction, which fails if the document was changed.
        for attempt in item.in_phase("read"):
            yield f"the worker writes for {attempt.message.due}", self.effect(item.moved(attempt, "done"), attempt)

    @step
    def fail(self, item: Item) -> Steps[Item]:
        # ItemTask._attempt: the function raised, or a server did not answer. ItemTask._postpone → Leases.sent_again.
        for attempt in item.in_phase("started", "read"):
            due = attempt.message.due
            if self.may_retry(attempt.message):
                waiting = self.with_lease(item, due, self.lease(item, due).sent_again())
                yield "the attempt fails, the lease waits for the next one", waiting.moved(attempt, "postponed")
            else:
                ended = self.end(item, due, is_done=False)
                yield "the last attempt fails", ended.moved(attempt, "given up")

    @step
    def send_again(self, item: Item) -> Steps[Item]:
        # ItemTask._retry: the next attempt is a message of its own. If it cannot be sent, this one is delivered again.
        for attempt in item.in_phase("postponed"):
            due, retries = attempt.message
            sent = item.queued(Sent(due, retries + 1))
            yield "the worker sends the next attempt", sent.moved(attempt, "sent again")
            if attempt.is_held:
                ended = self.end(item, due, is_done=False)
                yield "the worker puts the message back", ended.queued(attempt.message).without(attempt)

    @step
    def end_attempt(self, item: Item) -> Steps[Item]:
        # Leases._ending → END, then the acknowledgement (broker/unacked.py).
        for attempt in item.in_phase("done", "sent again"):
            ended = self.end(item, attempt.message.due, is_done=attempt.phase == "done")
            yield f"the attempt for {attempt.message.due} ends", ended.without(attempt)

    @step
    def give_up(self, item: Item) -> Steps[Item]:
        # DocumentWork.give_up: record the failure and cool down, if the document is still due at this time.
        for attempt in item.in_phase("given up"):
            due = attempt.message.due
            if item.due == due <= item.now:
                yield "the item cools down", self.release(item, due, must_cool_down=True).moved(attempt, "cooling")
            else:
                yield "the failed item is released", self.release(item, due).without(attempt)

    @step
    def note_failure(self, item: Item) -> Steps[Item]:
        # DueCollection.update_if_due: the document says that it failed, only if it still has the same due time.
        for attempt in item.in_phase("cooling"):
            left = item.without(attempt)
            if self.may_note(item, attempt):
                is_wrong = item.is_newer_noted or item.due != attempt.message.due
                noted = self.written(left, due=item.due)._replace(is_newer_noted=is_wrong)
                yield f"the failure of {attempt.message.due} is noted in the document", noted
            else:
                yield "the failure is not noted: the document has another due time", left

    @step
    def release_lost(self, item: Item) -> Steps[Item]:
        # queue_manager/worker/heartbeat.py: the main process releases the items of a process that died.
        for attempt in item.in_phase("lost"):
            released = self.release(item, attempt.message.due)
            yield "the worker releases the lost item", released.without(attempt)

    # The outbox: models/outbox.py

    @step
    def announce(self, item: Item) -> Steps[Item]:
        # AfterCalls._call: by the worker that wrote, or later by the task of a record that is left. No other
        # step depends on these two, so they are explored last.
        for due in item.owed - item.announced if item.is_over else ():
            yield f"`after` is called for {due}", item._replace(announced=item.announced | {due})

    @step
    def clear_record(self, item: Item) -> Steps[Item]:
        # outbox.delete, after the call has returned.
        for due in item.owed if item.is_over else ():
            if self.may_clear(item, due):
                yield f"the record of {due} is deleted", item._replace(owed=item.owed - {due})

    # Faults

    @step
    def worker_dies(self, item: Item) -> Steps[Item]:
        # The visibility timeout brings the message back.
        for attempt in item.attempts if item.faults else ():
            dead = self.with_loss(item.after_fault().without(attempt), attempt)
            yield "the worker dies", dead.queued(attempt.message) if attempt.is_held else dead

    @step
    def process_dies(self, item: Item) -> Steps[Item]:
        # batching/strategy.py: a batch is executed again one by one; batching/request.py: an item alone is released.
        for attempt in item.in_phase(*EXECUTING, "given up") if item.faults else ():
            dead = self.with_loss(item.after_fault(), attempt)
            phase: Phase = "lost" if attempt.is_alone else "received"
            yield "the process of the pool dies", dead.moved(attempt, phase, is_alone=True)

    @step
    def connection_is_lost(self, item: Item) -> Steps[Item]:
        # RESTORE_UNACKED: the worker goes on, and the message is delivered once more.
        for attempt in item.attempts if item.faults else ():
            if attempt.is_held:
                again = item.after_fault().queued(attempt.message)
                yield "the message is delivered again while its worker lives", again.moved(attempt, is_held=False)

    @step
    def answer_is_lost(self, item: Item) -> Steps[Item]:
        for attempt in item.in_phase("read") if item.faults else ():
            done = self.effect(item.after_fault().moved(attempt, "started"), attempt)
            yield "the write succeeds, but its answer is lost", done

    @step
    def broker_fails(self, item: Item) -> Steps[Item]:
        for message in set(item.queue) if item.faults else ():
            yield f"{shown(message)} is lost", item.after_fault().received(message)
            yield f"{shown(message)} is duplicated", item.after_fault().queued(message)

    @step
    def scan_dies(self, item: Item) -> Steps[Item]:
        if item.faults and item.scan is not None:
            yield "the scan dies", item.after_fault()._replace(scan=None)

    @step
    def redis_is_emptied(self, item: Item) -> Steps[Item]:
        # With the messages, if Redis is the broker.
        if item.faults:
            empty = item.after_fault()._replace(leases=tuple(ItemLease() for _ in item.leases), lost=frozenset())
            yield "the server of the leases is emptied", empty
            unheld = sorted(attempt._replace(is_held=False) for attempt in item.attempts)
            yield "Redis is emptied, also of messages", empty._replace(queue=(), attempts=tuple(unheld))


def shown(message: Sent) -> str:
    return f"the message for {message.due}" + (f", retry {message.retries}" if message.retries else "")
