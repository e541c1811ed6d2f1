"""How soon the driver abandons a MongoDB member that does not answer."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from dev.ports import LOOPBACK
from models import database
from queue_manager.core.clock import seconds
from queue_manager.core.settings import settings
from tests.e2e.replica_set import own_replica_set
from tests.eventually import eventually
from tests.pace import paced


def test_an_unresponsive_member_is_checked_again_on_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    database.close()
    with socket.create_server((LOOPBACK, 0)) as silent, paced() as pace, ThreadPoolExecutor(1) as thread:
        silent.settimeout(20)
        # The connections are kept open, and neither is answered.
        accepted = thread.submit(lambda: [(silent.accept()[0], time.monotonic()) for _ in range(2)])
        monkeypatch.setenv("MONGO_DB_URL", f"mongodb://{LOOPBACK}:{silent.getsockname()[1]}/test?replicaSet=rs")
        settings.cache_clear()
        try:
            with pytest.raises(ServerSelectionTimeoutError), database.within(seconds(0.1)):
                database.database().command("ping")
            (first, began), (second, again) = accepted.result(20)
            first.close()
            second.close()
            assert again - began < pace.allowed(4)
        finally:
            database.close()
            monkeypatch.undo()
            settings.cache_clear()


@pytest.mark.crash
def test_operations_abandon_an_unresponsive_primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_replica_set(tmp_path, monkeypatch) as members:
        numbers = database.collection("numbers")
        numbers.insert_one({"_id": 1})
        primary = eventually(members.primary)
        os.kill(primary.pid, signal.SIGSTOP)
        try:
            # Less than the timeout of a socket. The others take up to 10 s to elect another (`heartbeatTimeoutSecs`).
            with database.within(seconds(20)):
                assert numbers.find_one({}) == {"_id": 1}
        finally:
            os.kill(primary.pid, signal.SIGCONT)
