"""What workers do with the items of a system: hold, execute, retry and give up. Its item task calls this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from models import item_events
from models.database import server_now
from queue_manager import leases
from queue_manager.core.clock import parse_utc, seconds
from queue_manager.core.errors import PermanentError
from queue_manager.core.wording import sentence
from queue_manager.items import DueItem, is_result
from queue_manager.leases import MIN_COOL_DOWN, Attempts, Leases, MustCoolDown

ItemResult = dict[str, Any]
"""What the task of an item returns."""


@dataclass(frozen=True, kw_only=True)
class ItemWork:
    """The items of one system. Their arguments are, by default, `(id, due time)`."""

    leases: Leases
    clock: Callable[[], datetime] = server_now
    has_timelines: bool = False
    """Whether what happens to its items is recorded."""

    @property
    def system_name(self) -> str:
        """The name of the system, as in pauses and QM_DRY_RUN."""
        return self.leases.system

    # Holding

    def lease_of(self, args: Sequence[Any]) -> str:
        """Return the name of the lease of an item with these arguments."""
        *id, due_at = args
        try:
            return leases.name(" ".join(map(str, id)), parse_utc(due_at, field="due_at"))
        except PermanentError:
            return leases.name(" ".join(map(str, args)), None)  # the item's task refuses the argument

    def due_ms(self, item: DueItem) -> int | None:
        """Return when an item fell due, in Unix ms; `None` if its arguments do not contain that."""
        return leases.due_ms(item.lease)

    def mark_dispatched_manually(self, items: Sequence[DueItem]) -> None:
        """Record that items taken manually were sent: they wait for a worker, as long as it takes."""
        self.postpone(items, wait=seconds(0))
        self.record_dispatched(items, is_manual=True)

    def release(self, items: Sequence[DueItem]) -> None:
        """Release items that were not sent, or whose process died: they are due again at once."""
        self.leases.release([item.lease for item in items])

    def renew(self, items: Sequence[DueItem]) -> None:
        """Renew the leases of items that this worker has received and not finished."""
        self.leases.renew([item.lease for item in items])

    def renew_claims(self, running: Mapping[str, int]) -> None:
        """Renew what running tasks hold besides their leases; `running` has their process ids by task id."""

    def over_limit(self, running: Mapping[str, int]) -> Mapping[str, str]:
        """Return the running tasks whose process must be killed, by task id, with the reason for the log."""
        return {}

    def postpone(self, items: Sequence[DueItem], *, wait: timedelta) -> None:
        """Keep the leases of items that are sent again, with an ETA in `wait`, until a worker receives them."""
        self.leases.mark_sent_again({item.lease: wait for item in items})

    def cool_down_lost(self, item: DueItem, lost: MustCoolDown) -> None:
        """Handle an item whose process died several times in a row: no scan takes it for a while."""
        self.leases.release([item.lease], cool_down=lost.cool_down)

    def lost(self, item: DueItem, why: str) -> None:
        """Handle the death of the process that worked on this item; `why` is a clause."""
        self.record_attempt(item, "lost", error=sentence(why))
        self.release([item])

    # Attempts

    @property
    def batch_function(self) -> Callable[[Sequence[DueItem]], Sequence[Any]] | None:
        """The function that executes a batch of items, if the system has one.

        It returns, item by item, the result of the item's task, the error with which that fails, `None` for an item
        that its own task executes, or `Verdict.UNREACHED`. It may raise `NotYetDue`, to be called again after the wait.
        After a timeout of a MongoDB that answers, smaller batches execute the items; any other error leaves all items
        to their tasks.
        """
        return None

    def attempts(self, items: Sequence[DueItem]) -> AbstractContextManager[Attempts]:
        """Record attempts at these items, as one batch, while the block runs."""
        return self.leases.batch([item.lease for item in items])

    def attempt(self, item: DueItem) -> AbstractContextManager[Attempts]:
        """Record one attempt while the block runs. Raises `leases.MustCoolDown`."""
        return self.leases.alone(item.lease)

    def give_up(self, item: DueItem, *, error: str) -> None:
        """Handle the failure of the last attempt: no scan takes the item for a minute; its attempts then start anew."""
        self.leases.release([item.lease], cool_down=MIN_COOL_DOWN)

    # Timelines

    def record_dispatched(self, items: Sequence[DueItem], *, is_manual: bool = False) -> None:
        """Record that items of one batch were dispatched; the ids of their tasks end with the position in it."""
        if self.has_timelines and items:
            task, names = items[0].task_id.rpartition("-")[0], [item.lease for item in items]
            item_events.record_dispatched(self.system_name, task, names, is_manual=is_manual)

    def record_executed(self, items: Sequence[DueItem], results: Sequence[Any], *, took: timedelta) -> None:
        """Record that items were executed together, each with its result; one without a result was not executed."""
        ended = [(item.lease, one) for item, one in zip(items, results, strict=True) if is_result(one)]
        if self.has_timelines and ended:
            skipped = {name: str(one["reason"]) for name, one in ended if isinstance(one, dict) and "skipped" in one}
            names, task = [name for name, _ in ended], items[0].task_id if len(items) == 1 else None
            item_events.record_executed(self.system_name, names, skipped, task=task, took=took)

    def record_attempt(
        self, item: DueItem, event: item_events.AttemptEvent, *, error: str, attempt: int | None = None
    ) -> None:
        """Record an attempt that did not succeed."""
        if self.has_timelines:
            item_events.record_attempt(
                self.system_name, item.lease, event, task=item.task_id, error=error, attempt=attempt
            )
