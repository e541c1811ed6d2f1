"""Moves our entries out of the keys that release 0.1 shared with every application that uses RedBeat.

An entry is ours if our app has its task; the others stay where they are. Beats of both releases may run at the same
time: while an older one leads, ours stand by. One release later this module can go.
"""

from __future__ import annotations

import json
from typing import Any

from redis import Redis
from redis.client import NEVER_DECODE

from queue_manager.beat.leader_lock import leadership

PREFIX = b"redbeat:"
SCHEDULE = "redbeat::schedule"
STATICS = "redbeat::statics"
LOCK = "redbeat::lock"
PAGE = 500  # entries read at once

# Move an entry, and its place among those of the configuration.
#
# KEYS     entry, schedule and statics before; the same three after
# ARGV     name of the entry
# Returns  1 when it was moved, 0 when it is gone
#
# Atomic because its program may save or delete it meanwhile. One that is there under both keys was saved last under
# the old one.
MOVE = """
local at = redis.call('ZSCORE', KEYS[2], KEYS[1])
if not at or redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
redis.call('RENAME', KEYS[1], KEYS[4])
redis.call('ZREM', KEYS[2], KEYS[1])
redis.call('ZADD', KEYS[5], at, KEYS[4])
if redis.call('SREM', KEYS[3], ARGV[1]) == 1 then
    redis.call('SADD', KEYS[6], ARGV[1])
end
return 1
"""


def leader(client: Redis) -> str | None:
    """Return the beat of release 0.1 that leads, as `host:pid`. RedBeat's own lock is no hash."""
    if client.type(LOCK) not in ("hash", b"hash"):
        return None
    holder = leadership(client, LOCK)
    return f"{holder.host}:{holder.pid}" if holder else None


def move_entries(client: Any, app: Any) -> int:
    """Move our entries to the keys of `app`; return how many. Raises what redis-py raises."""
    conf = app.redbeat_conf
    as_bytes: dict[str, Any] = {NEVER_DECODE: True}  # what another application wrote need not be UTF-8
    keys = client.execute_command("ZRANGE", SCHEDULE, 0, -1, **as_bytes)
    moved = 0
    for start in range(0, len(keys), PAGE):
        page = keys[start : start + PAGE]
        with client.pipeline(transaction=False) as pipe:
            for key in page:
                pipe.execute_command("HGET", key, "definition", **as_bytes)
            definitions = pipe.execute(raise_on_error=False)
        for key, definition in zip(page, definitions, strict=True):
            if key.startswith(PREFIX) and _is_ours(definition, app):
                name = key.removeprefix(PREFIX)
                new_key = conf.key_prefix.encode() + name
                names = (key, SCHEDULE, STATICS, new_key, conf.schedule_key, conf.statics_key)
                moved += int(client.eval(MOVE, len(names), *names, name))
    return moved


def _is_ours(definition: Any, app: Any) -> bool:
    """Return True if our app has the task of an entry. Celery's own tasks are every application's."""
    try:
        task = json.loads(definition)["task"]
        return task in app.tasks and not task.startswith("celery.")
    except (TypeError, ValueError, LookupError, RecursionError):
        return False
