"""Wake-up signal: waits until a list has a message, without taking it."""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from queue_manager.core.log import get_logger

WAIT_TIMEOUT = 4  # seconds that the server waits before it replies that the list is empty
LOST_AFTER = 6  # seconds without a reply, after which the connection is lost
REFUSAL_DELAY = 1.0  # seconds before the next attempt on a server that refuses the command

log = get_logger("QM/transport")


class Waiter:
    """A connection on which the server replies when the list `name` has a message.

    Blocks on `BLMOVE name name RIGHT RIGHT`, a no-op move used as a wake-up signal.
    """

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name
        self._started_at: float | None = None
        self._not_before = 0.0

    @property
    def is_waiting(self) -> bool:
        return self._started_at is not None

    def start(self) -> None:
        """Send the command, unless it was sent; its reply makes the connection readable."""
        if not self.is_waiting and time.monotonic() >= self._not_before:
            self.client.connection.send_command("BLMOVE", self.name, self.name, "RIGHT", "RIGHT", WAIT_TIMEOUT)
            self._started_at = time.monotonic()

    def read_reply(self) -> bool:
        """Return True if the list has a message. Raises the errors of redis-py when the connection is lost."""
        self._started_at = None
        try:
            return self.client.parse_response(self.client.connection, "BLMOVE") is not None
        except ResponseError as error:  # the list is polled nevertheless
            self._not_before = time.monotonic() + REFUSAL_DELAY
            if not isinstance(error, OutOfMemoryError):  # a full server moves nothing
                log.warning("Redis refuses to wait for messages", list=self.name, error=str(error))
            return False

    def reset(self) -> None:
        """Stop waiting, because the connection was lost."""
        self._started_at = None

    def is_overdue(self) -> bool:
        """Return True if the reply is so late that the connection is lost."""
        return self._started_at is not None and time.monotonic() - self._started_at > LOST_AFTER
