"""A Redis that cannot write to its disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import redis

from tests.eventually import eventually


def cannot_save(client: redis.Redis, directory: Path) -> None:
    """Have the server refuse writes, because it could not save its data."""
    client.config_set("save", "3600 1")
    shutil.rmtree(directory)
    client.bgsave()
    eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
