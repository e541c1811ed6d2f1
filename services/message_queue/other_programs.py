"""Messages of other programs, such as an older service, that produce to or consume from the same streams.

Guarantee: a message that another program adds or takes is listed, has a deadline and is found by its id: within a
minute, or when it is requested. With `QUEUE_SHARED=false`, if no other program uses the streams, none is searched for.
"""

from __future__ import annotations

import time
from datetime import timedelta

from queue_manager.core.clock import milliseconds, minutes, seconds
from queue_manager.core.log import get_logger
from services.message_queue.messages import QueueOptions
from services.message_queue.scripts import Scripts, streams, translate_errors

HEAL_INTERVAL, HEAL_BUDGET = minutes(1), seconds(1)
HEAL_TURN = seconds(50)  # shorter, so that a process that asks once per interval finds the turn free
ADOPT_BUDGET = seconds(2)
MAX_LEVELS = 100  # of priorities that any release has had
PENDING_PAGE_SIZE = 100  # entries of a pending list per script call

log = get_logger("QM/message-queue")


class OtherPrograms:
    """Messages that other programs added to, or received from, one queue. Every method raises QueueUnavailable."""

    def __init__(self, scripts: Scripts, options: QueueOptions) -> None:
        self._scripts, self._options = scripts, options

    def heal(self, *, budget: timedelta = HEAL_BUDGET) -> int:
        """Set a deadline for entries that were received without one, and move entries from streams that no one reads.

        They wait in the stream of an older service, or of a priority that there was before `levels` was reduced. Also
        deletes records of entries that other programs deleted, and requeues messages that no consumer would receive,
        when they are found for the second time. Returns the number of entries that got a deadline. Does nothing if the
        last call was less than `HEAL_TURN` ago.
        """
        if not self._scripts.run("take_turn", "healed", milliseconds(HEAL_TURN)):
            return 0
        healed, end = 0, time.monotonic() + budget.total_seconds()
        end_of_first_half = end - budget.total_seconds() / 2  # the rest is for what follows
        queue, levels = self._scripts.queue, self._options.levels
        moved = [f"{queue}_manual", *self._obsolete_streams()]
        left = self._unless_all_are_missing([*streams(queue, levels), f"{queue}_typed", *moved])
        while left and time.monotonic() < end_of_first_half:
            for stream in [*left]:
                some, is_over = self._scripts.run(
                    "heal", levels, stream, PENDING_PAGE_SIZE, milliseconds(self._options.ack_timeout)
                )
                healed += some
                if is_over:
                    left.remove(stream)
        for stream in moved:
            after = ""
            while time.monotonic() < end and (after := self._scripts.run("drain", levels, stream, after)):
                pass
        requeued, is_over = self._scripts.run("check_records", levels)
        while not is_over and time.monotonic() < end:
            some, is_over = self._scripts.run("check_records", levels)
            requeued += some
        if requeued:
            log.warning(
                "Another program has changed the keys of the queue: messages that no consumer would receive wait again",
                messages=requeued,
            )
        return healed

    def _obsolete_streams(self) -> list[str]:
        """Return the streams of priorities that no longer exist and that have messages."""
        obsolete = self._unless_all_are_missing(streams(self._scripts.queue, MAX_LEVELS)[self._options.levels :])
        with translate_errors():
            return [stream for stream in obsolete if self._scripts.client.xlen(stream)]

    def _unless_all_are_missing(self, names: list[str]) -> list[str]:
        """Return these streams, or none if no key of them exists: one command, while an unused queue is idle."""
        with translate_errors():
            return names if names and self._scripts.client.exists(*names) else []

    def adopt(self) -> bool:
        """Create the records of messages that were added since the last call; return True if there are any.

        A record makes a message known by its id. After `ADOPT_BUDGET`, the rest is left for the next call.
        """
        created, is_over = 0, not self._options.is_shared
        end = time.monotonic() + ADOPT_BUDGET.total_seconds()
        while not is_over and time.monotonic() < end:
            some, is_over = self._scripts.run("adopt", self._options.levels)
            created += some
        return created > 0
