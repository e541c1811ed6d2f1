"""A small MongoDB replica set of three members on this machine, whose primary can step down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, PyMongoError

from beat_schedule import SYSTEMS
from dev.ports import LOOPBACK
from dev.servers import DATABASE, REPLICA_SET, Mongo
from models import database, schema
from queue_manager.core.settings import settings
from tests.eventually import eventually

MEMBERS = 3


class Member(Mongo):
    """One of several: it is ready when it answers, and made a member by `ReplicaSet`."""

    def __exit__(self, *_: object) -> None:
        self.kill()  # nobody looks at its data any more; in order it would look for a successor first

    def _is_ready(self) -> bool:
        try:
            with self._connect() as client:
                return bool(client.admin.command("ping")["ok"])
        except (PyMongoError, OSError):
            return False


class ReplicaSet:
    def __init__(self, members: list[Member]) -> None:
        self.members = members

    @property
    def url(self) -> str:
        hosts = ",".join(f"{LOOPBACK}:{member.port}" for member in self.members)
        return f"mongodb://{hosts}/{DATABASE}?replicaSet={REPLICA_SET}"

    def initiate(self) -> None:
        hosts = [{"_id": number, "host": f"{LOOPBACK}:{one.port}"} for number, one in enumerate(self.members)]
        config = {"_id": REPLICA_SET, "members": hosts, "settings": {"electionTimeoutMillis": 2_000}}
        with self._direct(self.members[0]) as client:
            client.admin.command("replSetInitiate", config)
        eventually(self.primary)
        eventually(self.is_complete)

    def primary(self) -> Member | None:
        """Return the member that takes writes now."""
        for member in self.members:
            try:
                with self._direct(member) as client:
                    if client.admin.command("hello")["isWritablePrimary"]:
                        return member
            except PyMongoError:
                continue
        return None

    def step_down(self) -> Member:
        """Let the primary step down and wait for another; return the one that stepped down."""
        before = eventually(self.primary)
        with self._direct(before) as client:
            with suppress(AutoReconnect):  # some versions close the connection that asked
                client.admin.command("replSetStepDown", 10, secondaryCatchUpPeriodSecs=5)
        eventually(lambda: self.primary() not in (None, before))
        return before

    def write_to_disk(self, member: Member) -> None:
        """Let a member write a checkpoint now. It may fail, and end."""
        with suppress(PyMongoError), self._direct(member) as client:
            client.admin.command("fsync")

    def is_complete(self) -> bool:
        """Return True if there are a primary and its secondaries, and no member is unavailable."""
        with self._direct(self.members[0]) as client:
            states = [member["stateStr"] for member in client.admin.command("replSetGetStatus")["members"]]
        return sorted(states) == ["PRIMARY", *["SECONDARY"] * (MEMBERS - 1)]

    def _direct(self, member: Member) -> MongoClient[dict[str, Any]]:
        return member._connect()


@contextmanager
def replica_set(directory: Path, member: Callable[[Path], Member] = Member) -> Iterator[ReplicaSet]:
    with ExitStack() as stack:
        members = [stack.enter_context(member(directory / f"member{number}")) for number in range(MEMBERS)]
        running = ReplicaSet(members)
        running.initiate()
        yield running


@contextmanager
def own_replica_set(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplicaSet]:
    """Run three members of the test's own, also for this process, with the indexes."""
    database.close()
    with replica_set(directory) as running:
        monkeypatch.setenv("MONGO_DB_URL", running.url)
        settings.cache_clear()
        schema.migrate(SYSTEMS)
        yield running
        database.close()
    monkeypatch.undo()
    settings.cache_clear()
