"""The environment of the processes that `make up` starts: what the user set, and what fills the gaps."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dotenv import dotenv_values

from queue_manager.devstack.ports import LOOPBACK

Environment = dict[str, str]

EVERYTHING_ON = {
    "QM_CONVERSATIONS": "true",
    "QM_PROJECTS": "true",
    "QM_SITES_FIX_STALE_THUMBNAILS": "true",
    "MANAGED_SUBSCRIPTIONS": '["seo", "ads"]',
    "QM_HOOKS": "true",
}


def given(root: Path) -> Environment:
    """Return what the user set: `.env`, and above it the environment. An empty value counts as not set."""
    merged = {**dotenv_values(root / ".env"), **os.environ}
    return {name: value for name, value in merged.items() if value}


def for_children(
    given: Mapping[str, str], *, mongo_url: str, redis_url: str, flower_port: int, web_port: int
) -> Environment:
    """Return the environment of the processes: everything given, with defaults for a laptop below it."""
    # In a database of the user's own nothing is switched on but by the user: the systems write there.
    is_ours = "MONGO_DB_URL" not in given
    defaults = {
        **(EVERYTHING_ON if is_ours else {}),
        "FLOWER_ADDRESS": LOOPBACK,
        **({} if "NODE_ENV" in given else {"APP_ENV": "development"}),
    }
    environment = {**defaults, **given}
    environment |= {
        "MONGO_DB_URL": mongo_url,
        "REDIS_URL": redis_url,
        "FLOWER_PORT": str(flower_port),
        "QM_WEB_PORT": str(web_port),
        "PYTHONUNBUFFERED": "1",
        # The commands of the Procfile are those of this installation.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", os.defpath)]),
    }
    if environment["FLOWER_ADDRESS"] in (LOOPBACK, "localhost"):
        environment.setdefault("FLOWER_UNAUTHENTICATED_API", "1")  # nobody else can reach it
    return environment
