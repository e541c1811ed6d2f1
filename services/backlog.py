"""How much a scan may dispatch: bounded by the messages that wait in its queue already."""

from __future__ import annotations


class Backlog:
    """The messages of one queue: how many wait for a worker, and how many more may be sent.

    Args:
        waiting: messages as the scan begins, those included that a worker took only just now.
    """

    def __init__(self, waiting: int = 0) -> None:
        self.waiting = waiting
        self._length = waiting

    def room(self, limit: int, *, at_least: int = 1) -> int:
        """Return how many more messages may be sent so that at most `limit` wait; 0 ends the scan.

        While there is room for `at_least`, what was known before is the answer.
        """
        wanted = min(at_least, limit // 2 or 1)
        if limit - self._length < wanted:
            self._length = self.length(limit - wanted)
        return max(limit - self._length, 0)

    def add(self, count: int) -> None:
        """Count messages that are sent now."""
        self._length += count

    def length(self, wanted: int) -> int:
        """Return how many messages wait now. It may take its time until at most `wanted` do."""
        return self._length
