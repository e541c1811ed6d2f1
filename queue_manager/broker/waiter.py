"""Waiting for a list to have a message, without taking it."""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from queue_manager.core.log import get_logger

PATIENCE = 1  # seconds that the server waits before it answers that there is nothing
PAUSE = 1.0  # seconds without asking a server that refuses

log = get_logger("QM/transport")


class Waiter:
    """A connection of its own, on which the server answers when `name` has a message.

    It asks for the oldest message to be moved to where it is: nothing changes, and the server tells when it can.
    """

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name
        self._asked_at: float | None = None
        self._not_before = 0.0

    @property
    def is_waiting(self) -> bool:
        return self._asked_at is not None

    def ask(self) -> None:
        """Ask once; the answer makes the connection readable."""
        if not self.is_waiting and time.monotonic() >= self._not_before:
            self.client.connection.send_command("BLMOVE", self.name, self.name, "RIGHT", "RIGHT", PATIENCE)
            self._asked_at = time.monotonic()

    def answered(self) -> None:
        """Read the answer. Raises what redis-py raises when the connection is lost."""
        self._asked_at = None
        try:
            self.client.parse_response(self.client.connection, "BLMOVE")
        except ResponseError as error:  # it is asked for messages all the same
            self._not_before = time.monotonic() + PAUSE
            if not isinstance(error, OutOfMemoryError):  # a full server moves nothing
                log.warning("Redis cannot be waited on", list=self.name, error=str(error))

    def lost(self) -> None:
        """Forget the question: its connection is gone."""
        self._asked_at = None

    def is_overdue(self, patience: float) -> bool:
        """Tell whether the answer is late by more than `patience` seconds."""
        return self._asked_at is not None and time.monotonic() - self._asked_at > PATIENCE + patience
