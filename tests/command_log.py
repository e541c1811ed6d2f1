"""The commands that a test's own code sends to MongoDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from models import database
from models.database import Document
from queue_manager.core.settings import settings


class Commands(CommandListener):
    """The names of the commands that were sent, with their collections."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name != "endSessions":
            self.sent.append(f"{event.command_name} {event.command[event.command_name]}")

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing to keep."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing to keep."""


@contextmanager
def commands() -> Iterator[list[str]]:
    """Record the commands that are sent within."""
    seen = Commands()
    url = settings().mongo_db_url
    with MongoClient[Document](url, event_listeners=[seen]) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "client", lambda: client)
        yield seen.sent
