"""The servers that a test process has: tests name them in their signatures."""

from __future__ import annotations

from dataclasses import dataclass

from dev.servers import Mongo, Valkey


@dataclass(frozen=True)
class Servers:
    mongo: Mongo
    valkey: Valkey
