"""The order in which messages of one priority are delivered, while operators pause and resume their types.

`messages.py` has the life of one message; here are several, of which only the type and the position matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol.checker import Specification, Steps, invariant, step


class Order(NamedTuple):
    """The stream of one priority. A message is named by its position."""

    kinds: str = ""
    """The types of the messages that were enqueued, a letter each."""
    read: int = 0
    """How far the group has read."""
    parked: tuple[int, ...] = ()
    """Messages that the group has read and nobody got, in stream order."""
    delivered: tuple[int, ...] = ()
    """Ascending."""
    paused: frozenset[str] = frozenset()
    pauses: int = 0
    """How often an operator may still pause a type."""

    is_out_of_order: bool = False
    is_delivered_while_paused: bool = False
    is_delivered_twice: bool = False


@dataclass(frozen=True)
class MessageOrder(Specification[Order]):
    """A stream, its group and the pauses. The fields are the bounds of what is explored."""

    types: str = "ab"
    messages: int = 4
    pauses: int = 2

    def initial(self) -> Order:
        return Order(pauses=self.pauses)

    @step
    def enqueue(self, order: Order) -> Steps[Order]:
        # enqueue.lua: a pause changes nothing.
        if len(order.kinds) < self.messages:
            for kind in self.types:
                yield f"the producer enqueues {kind}", order._replace(kinds=order.kinds + kind)

    @step
    def pause(self, order: Order) -> Steps[Order]:
        # pause.lua
        for kind in self.types:
            if order.pauses and kind not in order.paused:
                paused = order._replace(paused=order.paused | {kind}, pauses=order.pauses - 1)
                yield f"an operator pauses {kind}", paused

    @step
    def resume(self, order: Order) -> Steps[Order]:
        # resume.lua
        for kind in sorted(order.paused):
            yield f"an operator resumes {kind}", self.resumed(order, kind)

    @step
    def receive(self, order: Order) -> Steps[Order]:
        # dequeue.lua
        after = self.received(order)
        if after != order:
            yield "a consumer receives the next", after

    @step
    def slice_ends(self, order: Order) -> Steps[Order]:
        # dequeue.lua: a call passes over a bounded number; the process that would call again may have died.
        if self.next_parked(order) is None and self.is_next_paused(order):
            yield "a slice ends after one that is paused", self.passed_over(order)

    # What must hold

    @invariant
    def order_is_kept(self, order: Order) -> bool:
        return not order.is_out_of_order

    @invariant
    def none_is_delivered_while_paused(self, order: Order) -> bool:
        return not order.is_delivered_while_paused

    @invariant
    def a_pause_delivers_none_twice(self, order: Order) -> bool:
        return not order.is_delivered_twice

    def is_settled(self, order: Order) -> bool:
        return order.delivered == tuple(range(len(order.kinds)))

    # Parts of scripts

    def is_resumed_first(self) -> bool:
        """dequeue.lua: what was set aside is older than what the group has not read."""
        return True

    def is_next_paused(self, order: Order) -> bool:
        return order.read < len(order.kinds) and order.kinds[order.read] in order.paused

    def next_parked(self, order: Order) -> int | None:
        """dequeue.lua, next_parked: the oldest of all types that are resumed."""
        return next((at for at in order.parked if order.kinds[at] not in order.paused), None)

    def passed_over(self, order: Order) -> Order:
        """types.lua, park."""
        return order._replace(read=order.read + 1, parked=(*order.parked, order.read))

    def resumed(self, order: Order, kind: str) -> Order:
        return order._replace(paused=order.paused - {kind})

    def received(self, order: Order) -> Order:
        """Return the state after a call that was not cut short: one is delivered if one may be."""
        at = self.next_parked(order)
        if at is not None and self.is_resumed_first():
            return self.given(order, at)
        while self.is_next_paused(order):
            order = self.passed_over(order)
        if order.read < len(order.kinds):
            return self.given(order._replace(read=order.read + 1), order.read)
        return order if at is None else self.given(order, at)

    def given(self, order: Order, at: int) -> Order:
        older = [one for one in range(at) if one not in order.delivered and order.kinds[one] not in order.paused]
        return order._replace(
            parked=tuple(one for one in order.parked if one != at),
            delivered=tuple(sorted((*order.delivered, at))),
            is_out_of_order=order.is_out_of_order or bool(older),
            is_delivered_while_paused=order.is_delivered_while_paused or order.kinds[at] in order.paused,
            is_delivered_twice=order.is_delivered_twice or at in order.delivered,
        )
