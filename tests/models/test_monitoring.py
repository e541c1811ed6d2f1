"""How soon the driver asks a member of MongoDB again that accepted its connection and does not answer."""

from __future__ import annotations

import socket

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from dev.ports import LOOPBACK
from models import database
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings


def test_a_member_that_does_not_answer_is_asked_again_on_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    database.close()
    with socket.create_server((LOOPBACK, 0)) as silent:
        monkeypatch.setenv("MONGO_DB_URL", f"mongodb://{LOOPBACK}:{silent.getsockname()[1]}/test?replicaSet=rs")
        settings.cache_clear()
        try:
            with pytest.raises(ServerSelectionTimeoutError), database.within(seconds(4)):
                database.database().command("ping")
            silent.setblocking(False)
            for _ in range(2):
                silent.accept()[0].close()
        finally:
            database.close()
            monkeypatch.undo()
            settings.cache_clear()
