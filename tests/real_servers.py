"""The servers that a test process has: tests name them in their signatures."""

from __future__ import annotations

from dataclasses import dataclass

from dev.servers import Mongo, Valkey


@dataclass
class Servers:
    mongo: Mongo
    valkey: Valkey
    indexes: frozenset[str] | None = None  # those of a migrated database, which need not be created again
