"""Read and write concerns do not depend on the defaults of the deployment; a refused login is named in a sentence."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from pymongo import ReadPreference
from pymongo.monitoring import CommandListener, CommandStartedEvent

from models import database
from queue_manager.core.clock import seconds
from queue_manager.core.errors import ConfigurationError
from queue_manager.core.settings import settings
from tests.real_servers import Servers


def test_writes_are_acknowledged_by_a_majority_and_reads_go_to_the_primary(servers: Servers) -> None:
    rooms = database.collection("rooms")
    assert rooms.write_concern.document["w"] == "majority"
    assert rooms.read_preference == ReadPreference.PRIMARY


def test_all_threads_of_a_large_pool_execute_commands_at_the_same_time(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = 50
    all_have_connections = Barrier(threads)

    class Waiting(CommandListener):
        def started(self, event: CommandStartedEvent) -> None:
            if event.command_name == "ping":
                all_have_connections.wait(30)  # each with its connection

        def succeeded(self, event: object) -> None: ...

        def failed(self, event: object) -> None: ...

    database.close()
    monkeypatch.setattr(database, "_listeners", lambda: [Waiting()])
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda _: database.client().admin.command("ping"), range(threads)))
        assert not all_have_connections.broken
    finally:
        database.close()


def test_a_refused_login_is_one_sentence_without_the_reply_of_the_server(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect_anew() -> None:
        database.close()
        settings.cache_clear()

    refusal = r"refuses our credentials \(Authentication failed\.\)$"
    connect_anew()
    monkeypatch.setenv("MONGO_DB_URL", servers.mongo.url.replace("://", "://app:s3cret@"))
    try:
        with pytest.raises(ConfigurationError, match=refusal) as error:
            database.require_replica_set()
        # After that, the driver selects no server for up to three seconds.
        with database.within(seconds(0.5)), pytest.raises(ConfigurationError, match=refusal):
            database.require_replica_set()
        with database.within(seconds(0.1)), pytest.raises(database.Error) as of_command:
            database.ping()
        assert database.is_forbidden(of_command.value)
    finally:
        monkeypatch.undo()
        connect_anew()
    assert "s3cret" not in str(error.value)
