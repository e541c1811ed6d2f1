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
        self._queues: dict[str, str] = {}

    def of(self, queues: Collection[str]) -> list[PriorityList]:
        """Return the lists of queues, by priority and then in the order of the queues."""
        for queue in queues:
            if queue not in self._of_queue:
                self._of_queue[queue] = self._made(queue)
        return [one for same in zip(*map(self._of_queue.__getitem__, queues), strict=True) for one in same]

    def queue_of(self, name: str) -> str | None:
        """Return the queue of a list that was used."""
        return self._queues.get(name)

    def _made(self, queue: str) -> list[PriorityList]:
        channel, ending = self._channel, f', "", {dumps(queue)}]'
        names = [(channel._q_for_pri(queue, step), channel.priority(step)) for step in channel.priority_steps]
        self._queues.update((name, queue) for name, _ in names)
        return [PriorityList(name, queue, priority, ending) for name, priority in names]
