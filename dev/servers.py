"""Real servers for a laptop and the tests: a Valkey and a one-member MongoDB replica set.

Guarantee, beyond that of every embedded server: they listen on 127.0.0.1 alone, in directories that only
their owner can read. After `kill`, MongoDB has every acknowledged write, Valkey all but about the last
second's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import quote

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from dev.binaries import MONGOD, VALKEY
from dev.embedded_server import EmbeddedServer
from dev.ports import LOOPBACK

DATABASE = "queue_manager"
REPLICA_SET = "qm"
NOT_YET_INITIATED = 94  # MongoDB's error code for a member that has no replica set configuration
ANSWER_TIMEOUT_MS = 2_000


class Valkey(EmbeddedServer):
    """A Valkey, or a Redis when that is what is installed, as a broker needs it: it evicts nothing."""

    program = VALKEY
    fsync: ClassVar[str] = "everysec"
    """When the log of writes is synchronized with the disk, as in `appendfsync`."""

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        appendonly: bool = True,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`config` adds to the settings or replaces them, each value as `valkey.conf` writes it."""
        super().__init__(directory, port)
        self._password = config.get("requirepass")
        self._config = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "maxmemory-policy": "noeviction",
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": self.fsync,
            "save": '""',
            **config,
        }

    @property
    def url(self) -> str:
        password = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"redis://{password}{LOOPBACK}:{self.port}/0"

    @property
    def _config_file(self) -> Path:
        return self.directory / "valkey.conf"

    def _command(self, program: str) -> list[str]:
        # A file, because a password in `config` must not be seen on the command line.
        self._config_file.write_text("".join(f"{name} {value}\n" for name, value in self._config.items()))
        return [program, str(self._config_file)]

    def _is_ready(self) -> bool:
        timeout = ANSWER_TIMEOUT_MS / 1000
        try:
            with Redis.from_url(self.url, socket_timeout=timeout, retry=Retry(NoBackoff(), 0)) as client:
                client.ping()  # refused while it loads its data
                return str(client.info("server")["config_file"]) == str(self._config_file)
        except (RedisError, OSError):
            return False


class Mongo(EmbeddedServer):
    """A MongoDB replica set of one member: the smallest that keeps acknowledged writes over a crash."""

    program = MONGOD

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        *,
        cache_gb: float = 0.25,
        oplog_mb: int = 64,
        parameters: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`parameters` adds to those that the server is started with."""
        super().__init__(directory, port)
        self._cache_gb, self._oplog_mb = cache_gb, oplog_mb
        self._parameters = {
            "diagnosticDataCollectionEnabled": "false",  # no files every second
            # The transaction of a killed process keeps its locks for this long, or half as long again; by default 60 s.
            "transactionLifetimeLimitSeconds": "15",
            **parameters,
        }

    @property
    def url(self) -> str:
        return f"mongodb://{self._address}/{DATABASE}?replicaSet={REPLICA_SET}"

    @property
    def _address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def _command(self, program: str) -> list[str]:
        options = {
            "--replSet": REPLICA_SET,
            "--bind_ip": LOOPBACK,
            "--port": str(self.port),
            "--dbpath": str(self.directory),
            "--wiredTigerCacheSizeGB": str(self._cache_gb),
            "--oplogSize": str(self._oplog_mb),  # small by default: nobody replicates from it
        }
        # No socket in /tmp, which every user of the machine could open.
        switches = ["--quiet", "--nounixsocket"]
        for name, value in self._parameters.items():
            switches += ["--setParameter", f"{name}={value}"]
        return [program, *(word for option in options.items() for word in option), *switches]

    def _is_ready(self) -> bool:
        try:
            with self._connect() as client:
                started_with = client.admin.command("getCmdLineOpts")["parsed"]
                if not os.path.samefile(started_with["storage"]["dbPath"], self.directory):
                    return False
                self._configure(client)
                return bool(client.admin.command("hello")["isWritablePrimary"])
        except (PyMongoError, OSError):
            return False

    def _is_telling(self, line: str) -> bool:
        # Errors and fatal errors; what is not JSON is from before the log was opened, such as a missing library.
        return not line.startswith("{") or any(f'"s":"{severity}"' in line for severity in "EF")

    def _connect(self) -> MongoClient[dict[str, Any]]:
        return MongoClient(
            LOOPBACK,
            self.port,
            directConnection=True,
            serverSelectionTimeoutMS=ANSWER_TIMEOUT_MS,
            socketTimeoutMS=ANSWER_TIMEOUT_MS,
        )

    def _configure(self, client: MongoClient[dict[str, Any]]) -> None:
        """Make the member a replica set, or tell it its new port when its data was last used on another."""
        try:
            config = client.admin.command("replSetGetConfig")["config"]
        except OperationFailure as error:
            if error.code != NOT_YET_INITIATED:
                raise
            client.admin.command("replSetInitiate", {"_id": REPLICA_SET, "members": [self._member()]})
            return
        if config["members"] != [{**config["members"][0], **self._member()}]:
            config.update(members=[self._member()], version=config["version"] + 1)
            client.admin.command("replSetReconfig", config, force=True)

    def _member(self) -> dict[str, Any]:
        return {"_id": 0, "host": self._address}
