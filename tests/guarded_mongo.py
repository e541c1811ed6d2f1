"""A MongoDB that expects a login: it starts without, creates its users, and starts again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from dev.servers import Mongo


class GuardedMongo(Mongo, ABC):
    _has_users = False

    @abstractmethod
    def create_users(self, client: MongoClient[dict[str, Any]]) -> None:
        """Create users, among them `admin`."""

    @abstractmethod
    def url_of(self, user: str) -> str:
        """Return the URL with the credentials of a user."""

    def start(self) -> None:
        super().start()
        with self._connect() as client:
            self.create_users(client)
        self.stop()
        key = self.directory / "key"
        key.write_text("c2hhcmVkIGJ5IHRoZSBtZW1iZXJz")
        key.chmod(0o600)
        self._has_users = True
        super().start()

    def _command(self, program: str) -> list[str]:
        guarded = ["--auth", "--keyFile", str(self.directory / "key")] if self._has_users else []
        return [*super()._command(program), *guarded]

    def _is_ready(self) -> bool:
        if not self._has_users:
            return super()._is_ready()
        try:
            with MongoClient[Any](self.url_of("admin"), directConnection=True, serverSelectionTimeoutMS=2000) as client:
                return bool(client.admin.command("hello")["isWritablePrimary"])
        except PyMongoError:
            return False
