"""The items of a system as people see them: due, in progress, stuck or failed; and manual retries.

Guarantee: a list has a fixed order and is read from any position on. A manual retry takes the lease as a scan does, so
that no scan dispatches the item at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, with_config

from queue_manager import leases
from queue_manager.core.json_types import ALWAYS_PRESENT, Moment

State = Literal["due", "in-progress", "stuck", "failed"]
"""`due`: the next scan takes it. `in-progress`: sent, or being worked on. `stuck`: its lease ended without a result.
`failed`: the last attempt failed; a scan takes it after a cool-down."""
STATES: tuple[State, ...] = get_args(State)
Position = tuple[Any, ...]
"""The position of an item in a list: the values of the fields by which the list is sorted."""


@dataclass(frozen=True, kw_only=True)
class DueItem:
    """One item to be sent: the arguments of its task, the name of its lease, and its ETA if it is not due yet."""

    task_id: str
    """The id of its Celery task."""
    args: tuple[Any, ...]
    lease: str = ""
    eta: datetime | None = None


class Verdict(Enum):
    """Why a batch did not execute an item."""

    ALONE = "alone"
    """A previous process did not survive this item: its own task executes it alone."""
    UNREACHED = "unreached"
    """The time of the batch was over before this item's turn: another batch executes it."""


def is_result(outcome: Any) -> bool:
    """Return True if the outcome of an item in a batch is the result of its task, neither an error nor `None`."""
    return outcome is not None and not isinstance(outcome, Verdict | BaseException)


@with_config(ALWAYS_PRESENT)
@dataclass(frozen=True, kw_only=True)
class Item:
    """One item of a system; what is unknown is null."""

    id: Annotated[str, Field(description="Its id, in extended JSON unless it is an ObjectId.")]
    title: Annotated[str, Field(description="Its title, such as the account of a room.")]
    state: State
    position: Annotated[Position, Field(exclude=True)]
    """Its position in the list of its state."""
    due_at: Moment | None = None
    since: Annotated[Moment | None, Field(description="The time at which it came into this state.")] = None
    reason: Annotated[str | None, Field(description="Why its last attempt failed.")] = None
    attempts: Annotated[
        int,
        Field(
            description="How many times in a row all its attempts failed; for a site, its resets in a row. "
            "0 if unknown."
        ),
    ] = 0
    next_at: Annotated[Moment | None, Field(description="When its cool-down or its worker's lease ends.")] = None


class Listed(ABC):
    """The items of a system, for lists and manual retries."""

    @abstractmethod
    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        """Yield the items in a state beyond a position, by the time that the state depends on."""

    def read(
        self, state: State, *, after: Position | None = None, newest_first: bool = True
    ) -> Iterator[Item | Position]:
        """Yield what `items` yields, and the position of each other item that was read, where a reader may stop."""
        yield from self.items(state, after=after, newest_first=newest_first)

    @abstractmethod
    def take(self, ids: Sequence[str]) -> list[DueItem]:
        """Take those of `ids` that are due, stuck or failed now, to be sent at once."""

    def id_of(self, taken: DueItem) -> str:
        """Return the id, as the lists have it, of an item that was taken."""
        return leases.id_of(taken.lease)

    def has(self, id: str) -> bool:
        """Return True if there is such an item, in any state. Override it where `document` returns less, or is slow."""
        return self.document(id) is not None

    def document(self, id: str) -> Mapping[str, Any] | None:
        """Return the document of an item, as it is stored; `None` if there is none, or if it must not be shown."""
        return None
