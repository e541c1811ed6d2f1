"""The state of the dispatch of one document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from tests.protocol.lease import ItemLease

Phase = Literal[
    "received",  # by a worker, not started
    "started",  # recorded in Redis
    "read",  # the document, which nobody has changed since
    "done",  # written, or not due any more
    "postponed",  # failed; the lease waits for the next attempt
    "sent again",  # as the next attempt
    "given up",  # the last attempt failed, or the process was lost too often
    "cooling",  # given up; the document does not say so yet
    "lost",  # the process is dead; the worker's main process releases the lease
]
EXECUTING: tuple[Phase, ...] = ("started", "read", "done", "postponed", "sent again")
"""Between the records of start and end in Redis."""


class Sent(NamedTuple):
    """A message in the broker."""

    due: int
    retries: int = 0


class Attempt(NamedTuple):
    """A message in a worker."""

    phase: Phase
    message: Sent
    is_alone: bool = False
    """It is executed alone, not in a batch with others."""
    is_held: bool = True
    """The broker delivers the message again if the worker does not acknowledge it."""


class Effect(NamedTuple):
    """What a write did."""

    meant: int
    """The due time that the message was sent for."""
    replaced: int
    """The due time that the document had; 0: none."""
    is_early: bool


class Scan(NamedTuple):
    """A scan that has found the document due."""

    phase: Literal["found", "taken", "sent"]
    due: int


class Item(NamedTuple):
    """The state of everything: clock, document, leases, broker, scan, workers, and what has happened."""

    now: int = 0
    due: int = 0
    """The due time of the document; 0: none."""
    choices: tuple[int, ...] = ()
    """Due times that users may still set."""
    leases: tuple[ItemLease, ...] = ()
    """Of each due time."""
    queue: tuple[Sent, ...] = ()
    scan: Scan | None = None
    attempts: tuple[Attempt, ...] = ()
    owed: frozenset[int] = frozenset()
    """Due times whose `after` is to be called: `qm_owed`."""
    faults: int = 0
    """That may still happen."""

    effects: tuple[Effect, ...] = ()
    announced: frozenset[int] = frozenset()
    """Due times for which `after` was called."""
    lost: frozenset[int] = frozenset()
    """Due times whose process died; until an attempt ends, or the item cools down."""
    is_newer_released: bool = False
    is_newer_noted: bool = False
    is_suspect_batched: bool = False

    # Parts of steps

    def in_phase(self, *phases: Phase) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.phase in phases]

    def moved(self, attempt: Attempt, phase: Phase | None = None, **changes: Any) -> Item:
        """Return the state in which an attempt is in another phase."""
        return self.without(attempt).with_attempt(attempt._replace(phase=phase or attempt.phase, **changes))

    def with_attempt(self, attempt: Attempt) -> Item:
        return self._replace(attempts=tuple(sorted((*self.attempts, attempt))))

    def without(self, attempt: Attempt) -> Item:
        at = self.attempts.index(attempt)
        return self._replace(attempts=self.attempts[:at] + self.attempts[at + 1 :])

    def scanned(self, phase: str) -> Iterator[int]:
        """Yield the due time that the scan found, if the scan is in this phase."""
        if self.scan is not None and self.scan.phase == phase:
            yield self.scan.due

    def queued(self, message: Sent) -> Item:
        return self._replace(queue=tuple(sorted((*self.queue, message))))

    def received(self, message: Sent) -> Item:
        """Return the state without a message that waits."""
        at = self.queue.index(message)
        return self._replace(queue=self.queue[:at] + self.queue[at + 1 :])

    def after_fault(self) -> Item:
        return self._replace(faults=self.faults - 1)

    @property
    def is_over(self) -> bool:
        """Nothing can happen any more, but for what is owed."""
        return not (self.due or self.choices or self.queue or self.attempts or self.scan)
