"""The environment of the processes that `make up` starts: what the user set, and what fills the gaps."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from dotenv import dotenv_values

from queue_manager.core.settings import SECRET_NAMES, Settings

Environment = dict[str, str]

MESSAGE_QUEUE = "QM_MESSAGE_QUEUE"
JOBS_IMPORTS, DEMO_JOBS = "JOBS_IMPORTS", "dev.demo_jobs"
EVERYTHING_ON = {
    "QM_CONVERSATIONS": "true",
    "QM_PROJECTS": "true",
    "QM_SITES_FIX_STALE_THUMBNAILS": "true",
    MESSAGE_QUEUE: "true",
    "QM_JOBS": "true",
    JOBS_IMPORTS: f'["{DEMO_JOBS}"]',
    "MANAGED_SUBSCRIPTIONS": '["seo", "ads"]',
    "QM_HOOKS": "true",
}
OWN_SERVERS = ("MONGO_DB_URL", "REDIS_URL")
SETTINGS = (*(name.upper() for name in Settings.model_fields), "NODE_ENV", "PYTHONPATH")
"""What the commands read: a shell needs it, so that they use the same systems, jobs and queue as the processes."""
PRIVATE = (*SECRET_NAMES, "_URL")
"""How the names of settings end whose values stay out of files, because they are secrets or servers of the user's."""
FILLED_IN = "DEVSTACK"
"""The variable of a shell that has those of its values, as JSON, that the user did not set."""


def given(root: Path) -> Environment:
    """Return what the user set: `.env`, and above it the environment. An empty value counts as not set.

    A shell that has read the file of `write_for_shells` has values that we filled in: the user set only the others.
    """
    filled_in = json.loads(os.environ.get(FILLED_IN, "{}"))
    own = {name: value for name, value in os.environ.items() if name != FILLED_IN and value != filled_in.get(name)}
    merged = {**dotenv_values(root / ".env"), **own}
    return {name: value for name, value in merged.items() if value}


def write_for_shells(file: Path, given: Mapping[str, str], children: Mapping[str, str]) -> None:
    """Write what a shell reads to run commands with the settings of the processes.

    Secrets and servers of the user's are named in a comment only. The demo's jobs are left out: programs that run
    outside of the checkout cannot import them.
    """
    private = [name for name in SETTINGS if name in given and name.endswith(PRIVATE)]
    names = [*OWN_SERVERS, *(name for name in SETTINGS if name in given), *EVERYTHING_ON, "APP_ENV"]
    exported = {name: children[name] for name in names if name in children and name not in private}
    if JOBS_IMPORTS not in given:
        exported.pop(JOBS_IMPORTS, None)
    filled_in = {name: value for name, value in exported.items() if value != given.get(name)}
    exported[FILLED_IN] = json.dumps(filled_in)
    lines = ["# Settings of the running `make up`, for the commands in a shell."]
    if private:
        lines.append("# Set these yourself, because they may have passwords, or name servers of yours:")
        lines.append(f"# {', '.join(private)}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in exported.items()]
    file.write_text("\n".join([*lines, ""]))


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
        "FLOWER_UNAUTHENTICATED_API": "1",  # by the Procfile, it listens on loopback alone
        **({} if "NODE_ENV" in given else {"APP_ENV": "development"}),
    }
    return {
        **defaults,
        **given,
        "MONGO_DB_URL": mongo_url,
        "REDIS_URL": redis_url,
        "FLOWER_PORT": str(flower_port),
        "QM_WEB_PORT": str(web_port),
        "PYTHONUNBUFFERED": "1",
        # The commands of the Procfile are those of this installation.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", os.defpath)]),
    }
