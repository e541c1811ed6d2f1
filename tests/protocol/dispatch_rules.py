"""What must hold while an item is dispatched, and the rules that protect it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.protocol.checker import Specification, invariant
from tests.protocol.item_state import EXECUTING, Attempt, Effect, Item, Sent
from tests.protocol.lease import ItemLease


@dataclass(frozen=True)
class DispatchRules(Specification[Item]):
    """The dispatch of one document. The fields are the bounds of what is explored."""

    due_times: int = 2
    workers: int = 2
    faults: int = 1
    queue_length: int = 1
    max_attempts: int = 2

    def initial(self) -> Item:
        times = range(1, self.due_times + 1)
        leases = tuple(ItemLease() for _ in times)
        return Item(now=self.due_times - 1, choices=tuple(times), leases=leases, faults=self.faults)

    # What must hold

    @invariant
    def one_effect_per_due_time(self, item: Item) -> bool:
        meant = [effect.meant for effect in item.effects]
        return len(meant) == len(set(meant))

    @invariant
    def never_early(self, item: Item) -> bool:
        return not any(effect.is_early for effect in item.effects)

    @invariant
    def newer_snooze_is_kept(self, item: Item) -> bool:
        return all(effect.replaced in (0, effect.meant) for effect in item.effects)

    @invariant
    def event_is_sent_or_owed(self, item: Item) -> bool:
        return all(effect.meant in item.owed | item.announced for effect in item.effects)

    @invariant
    def failure_is_noted_for_its_own_due_time(self, item: Item) -> bool:
        return not item.is_newer_noted

    @invariant
    def old_message_releases_no_newer_lease(self, item: Item) -> bool:
        return not item.is_newer_released

    @invariant
    def suspect_is_executed_alone(self, item: Item) -> bool:
        return not item.is_suspect_batched

    @invariant
    def attempts_are_bounded(self, item: Item) -> bool:
        return all(message.retries < self.max_attempts for message in item.queue)

    def is_settled(self, item: Item) -> bool:
        """The item is done and its event sent."""
        return item.due == 0 and not item.owed

    # The rules that protect the invariants

    def lease_of(self, due: int) -> int:
        """Return the name of the lease: the item's id and the due time."""
        return due

    def is_due(self, item: Item) -> bool:
        return item.due <= item.now

    def written(self, item: Item, *, due: int) -> Item:
        """Return the state after a write to the document: a transaction that has read it before must begin again."""
        attempts = (one._replace(phase="started") if one.phase == "read" else one for one in item.attempts)
        return item._replace(due=due, attempts=tuple(sorted(attempts)))

    def may_retry(self, message: Sent) -> bool:
        """RetryPolicy.allows."""
        return message.retries + 1 < self.max_attempts

    def may_note(self, item: Item, attempt: Attempt) -> bool:
        return item.due == attempt.message.due

    def may_clear(self, item: Item, due: int) -> bool:
        return due in item.announced

    def must_run_alone(self, lease: ItemLease) -> bool:
        return lease.is_suspect

    # Parts of steps

    def effect(self, item: Item, attempt: Attempt) -> Item:
        meant = attempt.message.due
        effect = Effect(meant=meant, replaced=item.due, is_early=meant > item.now)
        return self.written(item, due=0)._replace(
            owed=item.owed | {meant}, effects=tuple(sorted((*item.effects, effect)))
        )

    def end(self, item: Item, due: int, *, is_done: bool) -> Item:
        ended = self.lease(item, due).attempt_ended(is_done=is_done)
        item = self.witnessed(item, due) if is_done else item
        return self.with_lease(item, due, ended)._replace(lost=item.lost - {due})

    def release(self, item: Item, due: int, *, must_cool_down: bool = False) -> Item:
        lease = self.lease(item, due)
        return self.with_lease(self.witnessed(item, due), due, lease.released(must_cool_down=must_cool_down))

    def witnessed(self, item: Item, due: int) -> Item:
        """Note it if the lease that a message for `due` releases is that of a newer due time in flight."""
        is_other = item.due not in (0, due) and self.lease_of(item.due) == self.lease_of(due)
        is_in_flight = any(message.due == item.due for message in item.queue)
        return item._replace(is_newer_released=True) if is_other and is_in_flight else item

    def with_loss(self, item: Item, attempt: Attempt) -> Item:
        """Remember that a process died, if its start is still recorded: another attempt at the item may have ended."""
        due = attempt.message.due
        is_recorded = attempt.phase in EXECUTING and self.lease(item, due).has_started
        return item._replace(lost=item.lost | {due}) if is_recorded else item

    def keys(self) -> range:
        return range(1, self.due_times + 1)

    def lease(self, item: Item, due: int) -> ItemLease:
        return item.leases[self.lease_of(due) - 1]

    def with_lease(self, item: Item, due: int, lease: ItemLease) -> Item:
        at = self.lease_of(due) - 1
        return item._replace(leases=(*item.leases[:at], lease, *item.leases[at + 1 :]))

    def canonical(self, item: Item) -> Item:
        """Return the state that allows all steps that this one allows, and is explored in place of it."""
        named = {item.due, *item.choices, *(message.due for message in item.queue)}
        named |= {attempt.message.due for attempt in item.attempts} | ({item.scan.due} if item.scan else set())
        kept = {self.lease_of(due) for due in named if due}
        leases = tuple(outlived(one) if at in kept else ItemLease() for at, one in enumerate(item.leases, 1))
        attempts = item.attempts if item.faults else tuple(sorted(map(without_company, item.attempts)))
        now = item.now if max(named) > item.now else self.due_times  # when all is due, time makes no difference
        return item._replace(now=now, leases=leases, attempts=attempts, lost=item.lost & named)


def outlived(lease: ItemLease) -> ItemLease:
    """Return the lease after all its times are over: nothing is forbidden then that is allowed before."""
    is_ended = lease.place in ("sending", "running")
    return ItemLease(lease.place, is_ended, has_started=lease.has_started, losses=lease.losses)


def without_company(attempt: Attempt) -> Attempt:
    """Return an attempt whose process does not die any more: who runs with it makes no difference."""
    return attempt._replace(is_alone=attempt.is_alone and attempt.phase == "received")
