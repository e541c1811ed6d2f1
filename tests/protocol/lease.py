"""The lease of one item: what each script of `queue_manager/leases/scripts.py` does to it.

Times are left out: a lease that has an end may end at any moment, and so may a cool-down. `test_lease_conformance.py`
compares each method with its script, on a real server.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Place = Literal["free", "sending", "waiting", "running"]
MAX_LOSSES = 2  # after which an item cools down before it is started again


class ItemLease(NamedTuple):
    place: Place = "free"
    """`sending`: taken by a scan. `waiting`: dispatched, not received. `running`: received, or of a start."""
    is_ended: bool = False
    """The end of `sending` or `running` has passed: others may take it, its holder may still renew it."""
    is_cooling: bool = False
    is_done: bool = False
    """It ended a moment ago: a scan that read the document before does not dispatch it again."""
    has_started: bool = False
    """An attempt runs, or its process died."""
    losses: int = 0
    """How often in a row the process of an attempt died."""

    # Dispatch

    @property
    def is_free(self) -> bool:
        """Return True if a scan may take it (`TAKE`)."""
        return (self.place == "free" or self.is_ended) and not self.is_done and not self.is_cooling

    def taken(self) -> ItemLease:
        """`TAKE`: for the time of sending."""
        return self._replace(place="sending", is_ended=False)

    def dispatched(self) -> ItemLease:
        """`DISPATCHED`: it waits for a worker, for any time, unless one has received the item meanwhile."""
        return self._replace(place="waiting", is_ended=False) if self.place == "sending" else self

    def freed(self) -> ItemLease:
        """`FREE_LOST`: its message was lost."""
        return self._replace(place="running", is_ended=True)

    # Holding

    def renewed(self) -> ItemLease:
        """`RENEW`: it ends one lease from now. One that was released stays so."""
        return self if self.place == "free" else self._replace(place="running", is_ended=False)

    def sent_again(self) -> ItemLease:
        """`SENT_AGAIN`: the next attempt was sent, and waits for a worker."""
        return self if self.place == "free" else self._replace(place="waiting", is_ended=False)

    def released(self, *, must_cool_down: bool = False) -> ItemLease:
        """`RELEASE`: it may be taken again, at once or after a cool-down."""
        return self._replace(place="free", is_ended=False, is_cooling=self.is_cooling or must_cool_down)

    # Attempts

    @property
    def is_suspect(self) -> bool:
        """Return True if the item must be executed alone (`START_BATCH`)."""
        return self.has_started or self.losses > 0

    def started(self) -> ItemLease:
        """`START_BATCH` and `START_ALONE`: an attempt runs."""
        return self._replace(place="running", is_ended=False, has_started=True)

    def with_loss(self) -> ItemLease:
        """`START_ALONE`: an attempt before this one never ended, so its process died."""
        return self._replace(losses=min(self.losses + 1, MAX_LOSSES)) if self.has_started else self

    def cooled_down(self) -> ItemLease:
        """`START_ALONE`: too many losses; the start after the cool-down is not a loss."""
        return self._replace(has_started=False)

    def attempt_ended(self, *, is_done: bool) -> ItemLease:
        """`END`: the attempt ended, successfully or not."""
        ended = self._replace(has_started=False, losses=0)
        return ended._replace(place="free", is_ended=False, is_done=True) if is_done else ended
