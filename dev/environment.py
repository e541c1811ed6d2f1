"""The environment of the processes that `make up` starts: what the user set, and what fills the gaps."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dotenv import dotenv_values

from dev.ports import LOOPBACK

Environment = dict[str, str]

MESSAGE_QUEUE = "QM_MESSAGE_QUEUE"
EVERYTHING_ON = {
    "QM_CONVERSATIONS": "true",
    "QM_PROJECTS": "true",
    "QM_SITES_FIX_STALE_THUMBNAILS": "true",
    MESSAGE_QUEUE: "true",
    "QM_JOBS": "true",
    "JOBS_IMPORTS": '["dev.demo_jobs"]',
    "MANAGED_SUBSCRIPTIONS": '["seo", "ads"]',
    "QM_HOOKS": "true",
}


def given(root: Path) -> Environment:
    """Return what the user set: `.env`, and above it the environment. An empty value counts as not set."""
    merged = {**dotenv_values(root / ".env"), **os.environ}
    return {name: value for name, value in merged.items() if value}


def has_own_queue(given: Mapping[str, str]) -> bool:
    """Return True if the message queue is on a server that the user named."""
    return "REDIS_URL" in given or "QM_QUEUE_REDIS_URL" in given


def _switched_on(given: Mapping[str, str]) -> Environment:
    # In a database or queue of the user's own nothing is switched on but by the user: the systems write there.
    if "MONGO_DB_URL" in given:
        return {}
    return {name: value for name, value in EVERYTHING_ON.items() if name != MESSAGE_QUEUE or not has_own_queue(given)}


def for_children(
    given: Mapping[str, str], *, mongo_url: str, redis_url: str, flower_port: int, web_port: int
) -> Environment:
    """Return the environment of the processes: everything given, with defaults for a laptop below it."""
    defaults = {
        **_switched_on(given),
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
