"""The servers that a test process has: tests name them in their signatures."""

from __future__ import annotations

from dataclasses import dataclass

from redis import Redis

from dev.servers import Mongo, Valkey


@dataclass
class Servers:
    mongo: Mongo
    valkey: Valkey
    redis: Redis  # empties it before each test
    indexes: frozenset[str] | None = None  # those of a migrated database, which need not be created again
