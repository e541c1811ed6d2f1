"""The servers that a test process has: tests name them in their signatures."""

from __future__ import annotations

from dataclasses import dataclass

from queue_manager.devstack.servers import Mongo, Valkey


@dataclass(frozen=True)
class Servers:
    mongo: Mongo
    valkey: Valkey
