"""The lists of a channel's queues: each has the messages of one queue and priority."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from kombu.utils.json import dumps

if TYPE_CHECKING:
    from queue_manager.broker.channel import Channel


class PriorityList(NamedTuple):
    """A list that has the messages of one queue and priority."""

    name: str
    queue: str
    priority: int
    ending: str
    """What follows a message in its entry among the unacknowledged ones."""


class PriorityLists:
    """The lists of a channel. Their names are made once: a worker of all systems has 70 of them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._of_queue: dict[str, list[PriorityList]] = {}
        self._used: set[str] = set()

    def of(self, queues: Collection[str]) -> list[PriorityList]:
        """Return the lists of queues, by priority and then in the order of the queues."""
        for queue in queues:
            if queue not in self._of_queue:
                self._of_queue[queue] = self._made(queue)
        return [one for same in zip(*map(self._of_queue.__getitem__, queues), strict=True) for one in same]

    def _made(self, queue: str) -> list[PriorityList]:
        channel, ending = self._channel, f', "", {dumps(queue)}]'
        names = [(channel._q_for_pri(queue, step), channel.priority(step)) for step in channel.priority_steps]
        return [PriorityList(name, queue, priority, ending) for name, priority in names]

    def mark_used(self, one: PriorityList) -> None:
        """Remember that a message came from a list."""
        self._used.add(one.name)

    def awaited(self, queues: Collection[str], priorities: Collection[int]) -> list[PriorityList]:
        """Return the lists to be waited on: those of the priorities, and those that were used."""
        return [one for one in self.of(queues) if one.priority in priorities or one.name in self._used]
