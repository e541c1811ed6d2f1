"""The items of a system as people see them: which are due, in progress, stuck or failed; and taking some by hand.

Guarantee: a list is read in the order of an index, from any place on. What is taken by hand is taken as a scan takes
it, so that no scan sends it beside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from typing import Any, Literal, get_args

from models.listing import Position
from services.due_work import DueItem

State = Literal["due", "in-progress", "stuck", "failed"]
"""`due`: the next scan takes it. `in-progress`: sent, or being worked on. `stuck`: its time passed and nothing comes of
it. `failed`: the last attempt failed, and it rests."""
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, kw_only=True)
class Item:
    """One item; what is `None` is not known of it."""

    id: str
    title: str
    """What people know it by: the account of a room, the collection of a site."""
    state: State
    position: Position
    """Its place in the list of its state."""
    due_at: datetime | None = None
    since: datetime | None = None
    """Since when it is in its state."""
    reason: str | None = None
    attempts: int = 0
    """How often it was tried in vain."""
    next_at: datetime | None = None
    """When it may be tried again, or is taken back from its worker."""


class Listed(ABC):
    """A system whose items can be looked at and taken by hand."""

    @abstractmethod
    def items(self, state: State, *, after: Position | None = None, newest_first: bool = True) -> Iterator[Item]:
        """Yield the items in a state, in the order of the moment that the state turns on, beyond a position."""

    @abstractmethod
    def take(self, ids: Sequence[str]) -> list[DueItem]:
        """Take those of `ids` that are due, stuck or failed now, to be sent at once; `DueWork.release` gives back."""

    @abstractmethod
    def has(self, id: str) -> bool:
        """Tell whether there is such an item, whatever its state."""


def merged(lists: Iterable[Iterator[Item]], *, newest_first: bool) -> Iterator[Item]:
    """Yield the items of several lists of one order as one list."""
    return merge(*lists, key=_place, reverse=newest_first)


def _place(item: Item) -> tuple[Any, ...]:
    *moments, id = item.position
    return (*moments, str(id))
