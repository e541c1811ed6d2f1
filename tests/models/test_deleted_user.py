"""A user of MongoDB that is deleted and created again, as by a tool that replaces it, while a process runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from pymongo import MongoClient

from dev.ports import LOOPBACK
from dev.servers import DATABASE, REPLICA_SET
from models import database
from models.database import collection, is_login_refused, is_outage
from models.job_changes import Changes
from queue_manager.core.clock import Pace, seconds
from queue_manager.core.errors import Unavailable
from queue_manager.core.settings import settings
from queue_manager.server_calls import mongodb
from tests.eventually import eventually
from tests.guarded_mongo import GuardedMongo

PASSWORD = "s3cret"


class MongoWithApp(GuardedMongo):
    def create_users(self, client: MongoClient[dict[str, Any]]) -> None:
        client.admin.command("createUser", "admin", pwd=PASSWORD, roles=["root"])
        with MongoClient[dict[str, Any]](self.url_of("admin")) as admin:
            create_app(admin)

    def url_of(self, user: str) -> str:
        return (
            f"mongodb://{user}:{PASSWORD}@{LOOPBACK}:{self.port}/{DATABASE}?replicaSet={REPLICA_SET}&authSource=admin"
        )


def create_app(admin: MongoClient[dict[str, Any]]) -> None:
    admin.admin.command("createUser", "app", pwd=PASSWORD, roles=["readWriteAnyDatabase"])


@pytest.fixture
def admin(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[MongoClient[Any]]:
    """Let this process be `app`; return a client of the administrator."""
    with MongoWithApp(tmp_path_factory.mktemp("mongo")) as mongo, MongoClient[Any](mongo.url_of("admin")) as client:
        database.close()
        monkeypatch.setenv("MONGO_DB_URL", mongo.url_of("app"))
        monkeypatch.setattr(database, "_replacements", Pace(seconds(10)))  # another test may have replaced a client
        settings.cache_clear()
        yield client
        database.close()
        monkeypatch.undo()
        settings.cache_clear()


def refusal() -> BaseException | None:
    """Return the error of a read as requests and commands make it, if it is refused."""
    try:
        with mongodb():
            collection("accounts").find_one()
    except Unavailable as error:
        return error.__cause__
    return None


def test_a_process_goes_on_when_its_deleted_user_exists_again(admin: MongoClient[Any]) -> None:
    assert refusal() is None
    admin.admin.command("dropUser", "app")
    for _ in range(2):  # of a connection from before, and of a new one
        error = refusal()
        assert error is not None
        assert is_login_refused(error)
        assert is_outage(error)  # no item uses an attempt
    create_app(admin)
    eventually(lambda: refusal() is None, within=30)


def test_changes_of_jobs_go_on_when_the_deleted_user_exists_again(admin: MongoClient[Any]) -> None:
    async def follow() -> None:
        changes, token = Changes(), None

        async def follows() -> bool:
            nonlocal token
            with suppress(database.Error):
                async with aclosing(changes.since(token)) as steps:
                    token = (await anext(steps)).token
                    return True
            return False

        try:
            assert await follows()
            admin.admin.command("dropUser", "app")
            for _ in range(2):  # on a connection from before, and on a new one
                assert not await follows()
            create_app(admin)
            async with asyncio.timeout(30):
                while not await follows():
                    await asyncio.sleep(0.1)
        finally:
            await changes.close()

    asyncio.run(follow())
